// Registered memory that the program unmaps or protects while the HCA may still touch it: an error
// completion, and no signal that ends whoever owns it.
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
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

// A program that blocks all signals, as servers do in all threads but one, has blocked these in name.
TEST_P(GoneMemory, target_refuses_where_the_thread_has_blocked_all_signals) {
  ibv_wc none{};
  ASSERT_EQ(ibv_poll_cq(requests_.get(), 1, &none), 0);
  sigset_t all;
  sigset_t before;
  sigset_t seen;
  sigfillset(&all);
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, &all, &before), 0);
  // As the kernel has it, because another thread may be the one that meets the fault.
  sigemptyset(&seen);
  ASSERT_EQ(syscall(SYS_rt_sigprocmask, SIG_BLOCK, nullptr, &seen, _NSIG / 8), 0);
  EXPECT_EQ(sigismember(&seen, SIGTERM), 1);
  EXPECT_EQ(sigismember(&seen, SIGSEGV), 0);
  EXPECT_EQ(sigismember(&seen, SIGBUS), 0);
  go();
  const auto there = reinterpret_cast<std::uintptr_t>(page_);
  EXPECT_EQ(status_of(IBV_WR_RDMA_WRITE, piece(0, 8), there), IBV_WC_REM_ACCESS_ERR);
  ASSERT_EQ(sigprocmask(SIG_SETMASK, &before, &seen), 0);
  EXPECT_EQ(sigismember(&seen, SIGSEGV), 1);
  ASSERT_EQ(pthread_sigmask(SIG_BLOCK, nullptr, &seen), 0);
  EXPECT_EQ(sigismember(&seen, SIGSEGV), 0);
}

// Actions by the calls that <signal.h> chooses for other standards.
extern "C" sighandler_t __sysv_signal(int, sighandler_t);

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
TEST_P(GoneMemory, target_refuses_whichever_call_has_set_the_action) {
  go();
  const auto there = reinterpret_cast<std::uintptr_t>(page_);
  ASSERT_NE(__sysv_signal(SIGSEGV, SIG_DFL), SIG_ERR);
  ASSERT_EQ(sigignore(SIGBUS), 0);
  ASSERT_EQ(sighold(SIGSEGV), 0);
  EXPECT_EQ(sigset(SIGSEGV, SIG_DFL), SIG_HOLD);
  EXPECT_EQ(status_of(IBV_WR_RDMA_WRITE, piece(0, 8), there), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(signal(SIGBUS, SIG_DFL), SIG_IGN);
}
#pragma GCC diagnostic pop

INSTANTIATE_TEST_SUITE_P(Unmapped, GoneMemory, testing::Bool(),
                         [](const auto& is) { return is.param ? "unmapped" : "protected"; });

// Between two processes, where payload takes a wire, and is copied to a ring past the caches.
class GoneMemoryOfTwo : public Loopback, public testing::WithParamInterface<const char*> {
 protected:
  static constexpr std::size_t kManyBytes = 256 << 10;

  struct Place {
    ibv_gid gid{};
    std::uint64_t address = 0;
    std::uint32_t qpn = 0;
    std::uint32_t rkey = 0;
  };

  void SetUp() override {}
  // Gives the other process a place, and returns its own. Until then it waits.
  static Place exchange(int other, const Place& own) {
    Place place;
    EXPECT_EQ(send(other, &own, sizeof own, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof own));
    EXPECT_EQ(recv(other, &place, sizeof place, 0), static_cast<ssize_t>(sizeof place));
    return place;
  }
  // Writes to the other, or is written to. A half of this process's memory may go before.
  void take_part(int other, bool writes, bool goes) {
    Loopback::SetUp();
    auto* const pages = static_cast<std::byte*>(
        mmap(nullptr, kManyBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    const Mr region(ibv_reg_mr(pd_.get(), pages, kManyBytes, kAllAccess));
    ASSERT_NE(region, nullptr);
    const Cq cq = make_cq();
    const Qp qp = make_qp(cq.get());
    const auto address = reinterpret_cast<std::uintptr_t>(pages);
    const Place there =
        exchange(other, {.gid = gid(), .address = address, .qpn = qp->qp_num, .rkey = region->rkey});
    ibv_ah_attr path{};
    path.is_global = 1;
    path.port_num = 1;
    path.grh.dgid = there.gid;
    path.grh.sgid_index = 1;
    path.grh.hop_limit = 64;
    ASSERT_EQ(to_init(qp.get()), 0);
    ASSERT_EQ(to_rtr(qp.get(), there.qpn, path), 0);
    ASSERT_EQ(to_rts(qp.get()), 0);
    if (goes) munmap(pages + kManyBytes / 2, kManyBytes / 2);
    exchange(other, {});
    if (writes) {
      const ibv_sge all{.addr = address, .length = kManyBytes, .lkey = region->lkey};
      ASSERT_EQ(post_write(qp.get(), all, there.address, there.rkey), 0);
      const auto completion = await(cq.get());
      ASSERT_TRUE(completion);
      EXPECT_EQ(completion->status, goes ? IBV_WC_LOC_PROT_ERR : IBV_WC_REM_ACCESS_ERR);
    }
    exchange(other, {});  // shows that it lives
  }
};

TEST_P(GoneMemoryOfTwo, long_write_of_or_to_what_has_gone_fails_and_both_live) {
  for (const bool source_goes : {false, true}) {
    std::array<int, 2> ends{};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
    std::array<pid_t, 2> sides{};
    for (std::size_t i = 0; i < sides.size(); ++i) {
      sides[i] = fork();
      if (sides[i] != 0) continue;
      setenv("GDX_SOFTHCA_WIRE", GetParam(), 1);
      close(ends[1 - i]);
      const bool writes = i == 0;
      take_part(ends[i], writes, writes == source_goes);
      std::fflush(nullptr);
      std::_Exit(HasFailure() ? 1 : 0);
    }
    for (const int end : ends) close(end);
    for (const pid_t side : sides) {
      int status = -1;
      EXPECT_EQ(waitpid(side, &status, 0), side);
      EXPECT_EQ(status, 0) << (side == sides[0] ? "the one that writes" : "the target");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Wires, GoneMemoryOfTwo, testing::Values("udp", "shm"),
                         [](const auto& is) { return std::string(is.param); });

}  // namespace gone_memory_test
}  // namespace gdx::abi_tests
