// What the software HCA exports to whoever waits on it. Found at run time (dlsym), so that one binary
// serves machines with and without it; on real hardware the symbol is absent and nobody is called.
#pragma once

namespace gdx {

// int gdx_softhca_progress(void): runs one step of the HCAs of this process on the calling thread:
// doorbells, arrivals, timers. Returns the number of things done, 0 when idle or when another
// thread is already at it. Thread-safe, does not block.
inline constexpr char kSofthcaProgressSymbol[] = "gdx_softhca_progress";
using SofthcaProgress = int (*)();

}  // namespace gdx
