// Registered memory that the program unmaps or protects while the HCA may still touch it: an error
// completion, and no signal that ends whoever owns it.
#include <sys/mman.h>
#include <unistd.h>

#include <csetjmp>
#include <csignal>
#include <thread>

#include "tests/abi/loopback.h"

namespace gdx::abi_tests {
namespace gone_memory_test {

constexpr std::size_t kBytes = 4096;

class GoneMemory : public Loopback, public testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    Loopback::SetUp();
    page_ = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(page_, MAP_FAILED);
    region_.reset(ibv_reg_mr(pd_.get(), page_, kBytes, kAllAccess));
    ASSERT_NE(region_, nullptr);
    requests_ = make_cq();
    receives_ = make_cq();
    requester_ = make_qp(requests_.get());
    responder_ = make_qp(receives_.get());
    connect(requester_.get(), responder_->qp_num);
    connect(responder_.get(), requester_->qp_num);
  }
  void TearDown() override { munmap(page_, kBytes); }
  void go() {
    if (GetParam()) {
      ASSERT_EQ(munmap(page_, kBytes), 0);
    } else {
      ASSERT_EQ(mprotect(page_, kBytes, PROT_NONE), 0);
    }
  }
  [[nodiscard]] ibv_sge gone(std::uint32_t length_bytes) const {
    return {.addr = reinterpret_cast<std::uintptr_t>(page_), .length = length_bytes, .lkey = region_->lkey};
  }
  // Returns the status of a request. The HCA's own thread has time for it before anybody polls.
  ibv_wc_status status_of(ibv_wr_opcode opcode, ibv_sge local, std::uint64_t remote) {
    ibv_send_wr request{};
    request.sg_list = &local;
    request.num_sge = 1;
    request.opcode = opcode;
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
      request.wr.atomic = {.remote_addr = remote, .compare_add = 1, .swap = 0, .rkey = region_->rkey};
    } else {
      const bool at_gone = remote == reinterpret_cast<std::uintptr_t>(page_);
      request.wr.rdma = {.remote_addr = remote, .rkey = at_gone ? region_->rkey : mr_->rkey};
    }
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_send(requester_.get(), &request, &bad), 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    return status_in(requests_.get());
  }
  static ibv_wc_status status_in(ibv_cq* cq) {
    const auto completion = await(cq);
    EXPECT_TRUE(completion);
    return completion ? completion->status : IBV_WC_GENERAL_ERR;
  }

  void* page_ = MAP_FAILED;
  Mr region_;
  Cq requests_;
  Cq receives_;
  Qp requester_;
  Qp responder_;
};

TEST_P(GoneMemory, target_of_each_request_refuses_it) {
  go();
  const auto there = reinterpret_cast<std::uintptr_t>(page_);
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD}) {
    EXPECT_EQ(status_of(opcode, piece(0, 8), there), IBV_WC_REM_ACCESS_ERR) << opcode;
    for (ibv_qp* const qp : {requester_.get(), responder_.get()}) ASSERT_EQ(set_state(qp, IBV_QPS_RESET), 0);
    connect(requester_.get(), responder_->qp_num);
    connect(responder_.get(), requester_->qp_num);
  }
}

TEST_P(GoneMemory, source_and_place_of_an_answer_fail_their_request) {
  go();
  const auto elsewhere = reinterpret_cast<std::uintptr_t>(memory_.data());
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
    EXPECT_EQ(status_of(opcode, gone(2048), elsewhere), IBV_WC_LOC_PROT_ERR) << opcode;
    for (ibv_qp* const qp : {requester_.get(), responder_.get()}) ASSERT_EQ(set_state(qp, IBV_QPS_RESET), 0);
    connect(requester_.get(), responder_->qp_num);
    connect(responder_.get(), requester_->qp_num);
  }
}

TEST_P(GoneMemory, posted_receive_fails_with_its_send) {
  ASSERT_EQ(post_receive(responder_.get(), gone(64)), 0);
  go();
  EXPECT_EQ(status_of(IBV_WR_SEND, piece(0, 64), 0), IBV_WC_REM_OP_ERR);
  EXPECT_EQ(status_in(receives_.get()), IBV_WC_LOC_PROT_ERR);
}

sigjmp_buf jumped;

// A program's handlers stay its own, those from before the device was opened and those from after, by either
// call.
TEST_P(GoneMemory, handler_of_the_program_sees_its_own_faults_alone) {
  struct sigaction before {};
  struct sigaction own {};
  own.sa_sigaction = [](int, siginfo_t*, void*) { siglongjmp(jumped, 1); };
  own.sa_flags = SA_SIGINFO;
  ASSERT_EQ(sigaction(SIGSEGV, &own, &before), 0);
  go();
  volatile int own_faults = 0;
  if (sigsetjmp(jumped, 1) == 0) {
    *static_cast<volatile char*>(page_) = 1;
  } else {
    own_faults = own_faults + 1;
  }
  const auto there = reinterpret_cast<std::uintptr_t>(page_);
  EXPECT_EQ(status_of(IBV_WR_RDMA_WRITE, piece(0, 8), there), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(own_faults, 1);
  struct sigaction seen {};
  ASSERT_EQ(sigaction(SIGSEGV, nullptr, &seen), 0);
  EXPECT_EQ(seen.sa_sigaction, own.sa_sigaction);
  EXPECT_EQ(reinterpret_cast<void*>(signal(SIGSEGV, SIG_IGN)), reinterpret_cast<void*>(own.sa_sigaction));
  ASSERT_EQ(sigaction(SIGSEGV, &before, &seen), 0);
  EXPECT_EQ(seen.sa_handler, SIG_IGN);
}

INSTANTIATE_TEST_SUITE_P(Unmapped, GoneMemory, testing::Bool(),
                         [](const auto& is) { return is.param ? "unmapped" : "protected"; });

}  // namespace gone_memory_test
}  // namespace gdx::abi_tests
