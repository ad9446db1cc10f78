// Descriptors that a library keeps inside a program. Low numbers belong to the program: it prints to 1 and 2
// even if they are closed, and loops close ranges of numbers. So a kept descriptor has a high number. A note
// identifies its file, because a program may close it nevertheless.
#pragma once

#include <cstdint>

namespace gdx {

// Handle of a kept descriptor. A later one at this number has another note.
struct KeptDescriptor {
  int number = -1;
  std::uint64_t note = 0;  // 0: none, the number is beyond those that are noted
};

// Moves `descriptor` to a high number, close-on-exec, and notes it; the old number is closed. If the limit on
// open files leaves no high number, uses any from 3 on. -1 stays -1, and errno stays.
// Errors: -1 with errno EMFILE, and the old number is closed.
KeptDescriptor keep_descriptor(int descriptor);

// Moves a descriptor of the program away from the numbers 0 to 2. Differs from keep_descriptor(): no note, no
// high number, close-on-exec only on request.
int spare_standard_descriptors(int descriptor, bool close_on_exec);

// Returns whether this process keeps a descriptor at `number` that still refers to its file.
// Async-signal-safe; costs a load for a number that was never kept.
bool is_kept(int number);
// Returns whether the number still refers to the file of `kept`. Files of one inode (eventfd, epoll, pidfd)
// are indistinguishable, as when a system call closes one and another is opened.
bool is_kept(const KeptDescriptor& kept);

// Returns the first number from `from` on that is_kept(); -1 without one.
int next_kept(int from);

// Removes the note. False: the number now refers to another file, which its owner must not close.
bool stop_keeping(const KeptDescriptor& kept);

}  // namespace gdx
