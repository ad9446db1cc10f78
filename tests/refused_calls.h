// System calls that a process is refused from here on, as in a sandbox. For death tests: nothing undoes it.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace gdx::test {

// `action`: SECCOMP_RET_ERRNO | an errno. False: no filter can be had.
inline bool refuse_calls(const std::vector<long>& numbers, std::uint32_t action) {
  std::vector<sock_filter> program = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const long number : numbers) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(number), 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, action));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog filter{.len = static_cast<unsigned short>(program.size()), .filter = program.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

// Makes the creation of a thread fail.
inline bool refuse_threads() { return refuse_calls({SYS_clone3, SYS_clone}, SECCOMP_RET_ERRNO | EAGAIN); }

}  // namespace gdx::test
