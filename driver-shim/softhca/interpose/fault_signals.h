// Signals that the HCA has for itself.
#pragma once

namespace gdx::softhca::uverbs {

// Takes SIGSEGV and SIGBUS for accesses to memory that has gone, as install_fault_guard(), once in a process.
void take_fault_signals();

}  // namespace gdx::softhca::uverbs
