// Symbol that the software HCA exports to threads that wait on it. Callers look it up at run time (dlsym), so
// that one binary serves machines with and without it. On real hardware the symbol is absent and the call is
// skipped.
#pragma once

namespace gdx {

// Signature: int gdx_softhca_progress(void). Runs one step of the HCAs of this process on the calling thread:
// doorbells, arrivals, timers. Returns the number of things done: 0 when idle or when another thread runs a
// step. Thread-safe, does not block.
inline constexpr char kSofthcaProgressSymbol[] = "gdx_softhca_progress";
using SofthcaProgress = int (*)();

}  // namespace gdx
