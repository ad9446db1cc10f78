// Descriptors that a library keeps for itself inside a program. Low numbers are the program's: it prints to 1
// and 2 even where nothing is open there, and loops close all numbers they can think of. So a kept descriptor
// has a high number, and a note says what it refers to, since a program may close it all the same.
#pragma once

namespace gdx {

// Moves `descriptor` to a high number, close-on-exec, and notes it; the old number is closed. Where the limit
// on open files leaves no high number, any from 3 on. -1 stays -1, as errno does.
// Errors: -1 with errno EMFILE, and the old number is closed.
int keep_descriptor(int descriptor);

// Moves a descriptor that is to become the program's away from the numbers 0 to 2. As keep_descriptor(), but
// for the note and the high number, and with close-on-exec as asked for.
int spare_standard_descriptors(int descriptor, bool close_on_exec);

// Whether this process keeps `descriptor`, and it still refers to the same file.
// Async-signal-safe; a load for a number that was never kept.
bool is_kept(int descriptor);

// The first number from `from` on that is_kept(), -1: none.
int next_kept(int from);

// Removes the note. False: there was one, and the number refers to another file now, which is not ours to
// close.
bool stop_keeping(int descriptor);

}  // namespace gdx
