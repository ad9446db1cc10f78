// On-demand paging: memory is registered first and mapped later, or never.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <thread>

#include "tests/abi/loopback.h"

namespace gdx::abi_tests {
namespace paging_test {

constexpr std::size_t kPageBytes = 4096;
constexpr int kPaged = IBV_ACCESS_ON_DEMAND;

// Addresses of two pages that nobody else is given; nothing is there until a test puts it there.
class Paging : public Loopback {
 protected:
  void SetUp() override {
    Loopback::SetUp();
    ibv_device_attr_ex device{};
    ASSERT_EQ(ibv_query_device_ex(context_.get(), nullptr, &device), 0);
    if ((device.odp_caps.general_caps & IBV_ODP_SUPPORT_IMPLICIT) == 0) {
      GTEST_SKIP() << "paging on demand needs Linux 5.14, and a sandbox that permits process_vm_writev";
    }
    pages_ = mmap(nullptr, 2 * kPageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(pages_, MAP_FAILED);
    cq_ = make_cq();
    requester_ = make_qp(cq_.get());
    responder_ = make_qp(cq_.get());
    connect_both();
  }
  void TearDown() override {
    if (pages_ != MAP_FAILED) munmap(pages_, 2 * kPageBytes);
  }
  void connect_both() {
    connect(requester_.get(), responder_->qp_num);
    connect(responder_.get(), requester_->qp_num);
  }
  void map(std::size_t bytes, int rights) {
    void* const mapped = mmap(pages_, bytes, rights, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    ASSERT_EQ(mapped, pages_);
  }
  std::uint64_t place() const { return reinterpret_cast<std::uintptr_t>(pages_); }
  // Returns the status of a WRITE of both pages.
  ibv_wc_status write_to(const ibv_mr& region) {
    EXPECT_EQ(post_write(requester_.get(), piece(0, 2 * kPageBytes), place(), region.rkey), 0);
    return status();
  }
  ibv_wc_status write_from(const ibv_mr& region) {
    const ibv_sge from{.addr = place(), .length = 2 * kPageBytes, .lkey = region.lkey};
    const auto to = reinterpret_cast<std::uintptr_t>(memory_.data());
    EXPECT_EQ(post_write(requester_.get(), from, to, mr_->rkey), 0);
    return status();
  }
  ibv_wc_status status() {
    const auto completion = await(cq_.get());
    EXPECT_TRUE(completion);
    return completion ? completion->status : IBV_WC_GENERAL_ERR;
  }

  void* pages_ = MAP_FAILED;
  Cq cq_;
  Qp requester_;
  Qp responder_;
};

TEST_F(Paging, region_registered_before_its_memory_is_mapped_is_written_and_read) {
  const Mr region(ibv_reg_mr(pd_.get(), pages_, 2 * kPageBytes, kAllAccess | kPaged));
  ASSERT_NE(region, nullptr);
  map(2 * kPageBytes, PROT_READ | PROT_WRITE);
  memory_.fill(std::byte{0x5a});
  EXPECT_EQ(write_to(*region), IBV_WC_SUCCESS);
  memory_.fill(std::byte{0});
  EXPECT_EQ(write_from(*region), IBV_WC_SUCCESS);
  EXPECT_EQ(memory_[2 * kPageBytes - 1], std::byte{0x5a});
}

TEST_F(Paging, memory_that_is_not_there_is_an_error_completion) {
  const Mr region(ibv_reg_mr(pd_.get(), pages_, 2 * kPageBytes, kAllAccess | kPaged));
  ASSERT_NE(region, nullptr);
  map(kPageBytes, PROT_READ | PROT_WRITE);  // and nothing behind it
  EXPECT_EQ(write_to(*region), IBV_WC_REM_ACCESS_ERR);
  for (ibv_qp* const qp : {requester_.get(), responder_.get()}) ASSERT_EQ(set_state(qp, IBV_QPS_RESET), 0);
  connect_both();
  EXPECT_EQ(write_from(*region), IBV_WC_LOC_PROT_ERR);
}

TEST_F(Paging, memory_that_may_only_be_read_is_read_and_not_written) {
  const Mr region(ibv_reg_mr(pd_.get(), pages_, 2 * kPageBytes, kAllAccess | kPaged));
  ASSERT_NE(region, nullptr);
  map(2 * kPageBytes, PROT_READ);
  EXPECT_EQ(write_from(*region), IBV_WC_SUCCESS);
  EXPECT_EQ(write_to(*region), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(Paging, implicit_region_is_all_that_the_process_has) {
  const Mr region(ibv_reg_mr(pd_.get(), nullptr, SIZE_MAX, kAllAccess | kPaged));
  ASSERT_NE(region, nullptr);
  map(2 * kPageBytes, PROT_READ | PROT_WRITE);
  EXPECT_EQ(write_to(*region), IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_reg_mr(pd_.get(), nullptr, SIZE_MAX, kAllAccess), nullptr) << "only where it is paged";
  EXPECT_EQ(post_write(requester_.get(), piece(0, 8), 0, region->rkey), 0);
  EXPECT_EQ(status(), IBV_WC_REM_ACCESS_ERR) << "nothing is at address 0";
}

TEST_F(Paging, advice_is_answered_as_by_the_kernel) {
  const Mr region(ibv_reg_mr(pd_.get(), pages_, 2 * kPageBytes, IBV_ACCESS_REMOTE_READ | kPaged));
  ASSERT_NE(region, nullptr);
  const auto advise = [this](ibv_advise_mr_advice advice, std::uint32_t flags, std::uint32_t lkey) {
    ibv_sge range{.addr = place(), .length = 2 * kPageBytes, .lkey = lkey};
    return ibv_advise_mr(pd_.get(), advice, flags, &range, 1);
  };
  constexpr std::uint32_t kFlush = IBV_ADVISE_MR_FLAG_FLUSH;
  EXPECT_EQ(advise(IBV_ADVISE_MR_ADVICE_PREFETCH, kFlush, region->lkey), EFAULT) << "nothing is there";
  EXPECT_EQ(advise(IBV_ADVISE_MR_ADVICE_PREFETCH, 0, region->lkey), 0) << "nobody waits for it";
  EXPECT_EQ(advise(IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, kFlush, region->lkey), 0);
  EXPECT_EQ(advise(IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, kFlush, region->lkey), EPERM);
  EXPECT_EQ(advise(IBV_ADVISE_MR_ADVICE_PREFETCH, kFlush, mr_->lkey), ENOENT) << "it is not paged";
  EXPECT_EQ(advise(IBV_ADVISE_MR_ADVICE_PREFETCH, kFlush, ~region->lkey), ENOENT);
  EXPECT_EQ(advise(IBV_ADVISE_MR_ADVICE_PREFETCH, 1u << 31, region->lkey), EINVAL);
  EXPECT_EQ(advise(static_cast<ibv_advise_mr_advice>(3), 0, region->lkey), EOPNOTSUPP);
}

TEST_F(Paging, advice_brings_in_what_it_names_unless_it_forbids_faults) {
  const Mr region(ibv_reg_mr(pd_.get(), pages_, kPageBytes, IBV_ACCESS_REMOTE_READ | kPaged));
  ASSERT_NE(region, nullptr);
  map(2 * kPageBytes, PROT_READ);
  const auto advise = [&](ibv_advise_mr_advice advice, std::uint32_t length_bytes) {
    ibv_sge range{.addr = place(), .length = length_bytes, .lkey = region->lkey};
    return ibv_advise_mr(pd_.get(), advice, IBV_ADVISE_MR_FLAG_FLUSH, &range, 1);
  };
  const auto is_there = [this] {
    unsigned char resident = 0;
    EXPECT_EQ(mincore(pages_, kPageBytes, &resident), 0);
    return (resident & 1) != 0;
  };
  EXPECT_EQ(advise(IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, kPageBytes), 0);
  EXPECT_FALSE(is_there());
  EXPECT_EQ(advise(IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, kPageBytes + 1), EFAULT) << "beyond the region";
  EXPECT_EQ(advise(IBV_ADVISE_MR_ADVICE_PREFETCH, kPageBytes + 1), EFAULT) << "beyond the region";
  EXPECT_EQ(advise(IBV_ADVISE_MR_ADVICE_PREFETCH, kPageBytes), 0);
  EXPECT_TRUE(is_there());
}

// While another thread keeps doing `change`, with true and false in turn, and leaves true behind: every way
// of the HCA to touch the region ends well or in the error of missing memory. Both come about.
class PagingRaces : public Paging {
 protected:
  void use_while(const std::function<void(bool)>& change) {
    const Mr region(ibv_reg_mr(pd_.get(), pages_, 2 * kPageBytes, kAllAccess | kPaged));
    ASSERT_NE(region, nullptr);
    std::atomic<bool> over{false};
    std::thread changer([&] {
      while (!over.load()) {
        change(false);
        change(true);
      }
    });
    constexpr int kFew = 30;
    constexpr int kMost = 100'000;
    std::array<int, 2> well{};
    std::array<int, 2> not_there{};
    const auto enough = [&] {
      return std::ranges::all_of(well, [](int n) { return n >= kFew; }) &&
             std::ranges::all_of(not_there, [](int n) { return n >= kFew; });
    };
    for (int i = 0; i < kMost && !enough() && !HasFailure(); ++i) {
      const bool remote = i % 2 == 0;
      const ibv_wc_status ended = remote ? use_as_peer(*region, i / 2) : write_from(*region);
      if (ended == IBV_WC_SUCCESS) {
        ++well[i % 2];
        continue;
      }
      EXPECT_EQ(ended, remote ? IBV_WC_REM_ACCESS_ERR : IBV_WC_LOC_PROT_ERR) << i;
      ++not_there[i % 2];
      for (ibv_qp* const qp : {requester_.get(), responder_.get()})
        ASSERT_EQ(set_state(qp, IBV_QPS_RESET), 0);
      connect_both();
    }
    over.store(true);
    changer.join();
    EXPECT_TRUE(enough());
    EXPECT_EQ(write_to(*region), IBV_WC_SUCCESS);
  }

 private:
  ibv_wc_status use_as_peer(const ibv_mr& region, int round) {
    ibv_sge own = piece(0, 2 * kPageBytes);
    ibv_send_wr request{};
    request.sg_list = &own;
    request.num_sge = 1;
    switch (round % 3) {
      case 0: request.opcode = IBV_WR_RDMA_WRITE; break;
      case 1: request.opcode = IBV_WR_RDMA_READ; break;
      default: request.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD; break;
    }
    if (request.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
      own.length = sizeof(std::uint64_t);
      request.wr.atomic = {.remote_addr = place(), .compare_add = 1, .swap = 0, .rkey = region.rkey};
    } else {
      request.wr.rdma = {.remote_addr = place(), .rkey = region.rkey};
    }
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_send(requester_.get(), &request, &bad), 0);
    return status();
  }
};

TEST_F(PagingRaces, memory_that_comes_and_goes_is_an_error_completion_and_no_signal) {
  use_while([this](bool there) {
    mmap(pages_, 2 * kPageBytes, there ? PROT_READ | PROT_WRITE : PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  });
}

TEST_F(PagingRaces, file_that_is_cut_off_under_its_mapping_is_an_error_completion_and_no_signal) {
  const int file = memfd_create("paged", MFD_CLOEXEC);
  ASSERT_GE(file, 0);
  ASSERT_EQ(mmap(pages_, 2 * kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0), pages_);
  use_while([file](bool there) {
    const int done = ftruncate(file, there ? 2 * kPageBytes : 0);
    EXPECT_EQ(done, 0);
  });
  EXPECT_EQ(close(file), 0);
}

TEST_F(Paging, range_that_wraps_the_address_space_is_refused) {
  const auto refusal = [this](std::uint64_t start, std::uint64_t length_bytes) {
    errno = 0;
    const Mr region(ibv_reg_mr_iova(pd_.get(), reinterpret_cast<void*>(start), length_bytes,
                                    start % kPageBytes, kAllAccess | kPaged));
    return region == nullptr ? errno : 0;
  };
  EXPECT_EQ(refusal(~std::uint64_t{0} - kPageBytes, 2 * kPageBytes), EOVERFLOW);
  EXPECT_EQ(refusal(~std::uint64_t{0} - kPageBytes, kPageBytes), EOVERFLOW) << "its last page ends at 0";
  EXPECT_EQ(refusal(0, ~std::uint64_t{0} - 1), EOVERFLOW) << "nearly all, which is not all";
  EXPECT_EQ(refusal(place(), kPageBytes), 0);
}

}  // namespace paging_test
}  // namespace gdx::abi_tests
