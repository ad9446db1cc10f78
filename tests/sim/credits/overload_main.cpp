// gdx_overload: the overload experiment as a table.
#include <fmt/format.h>

#include "tests/sim/credits/overload.h"

namespace gdx::sim {
namespace {

const char* name(Staging staging) {
  switch (staging) {
    case Staging::kCredits: return "credits";
    case Staging::kOverwrite: return "overwrite";
    case Staging::kTailDrop: return "tail drop";
  }
  return "";
}

void print_table() {
  fmt::print(
      "modelled, in virtual time: {} slots of {} B, a link of 100 Gb/s, one peer silent for half of the "
      "run\n\n",
      kOverloadSlots, kOverloadSlotBytes);
  fmt::print("{:<9}{:<10}{:>8}{:>9}{:>9}{:>9}{:>9}{:>9}{:>13}\n", "where", "staging", "senders", "overload",
             "pushed", "dropped", "damaged", "goodput", "worst share");
  for (const std::uint32_t senders : {4u, 8u, 16u}) {
    for (const std::uint32_t overload : {2u, 8u}) {
      for (const Staging staging : {Staging::kCredits, Staging::kTailDrop, Staging::kOverwrite}) {
        const OverloadResult r = run_overload({senders, overload, staging});
        fmt::print("{:<9}{:<10}{:>8}{:>8}x{:>9}{:>9}{:>9}{:>8.1f}%{:>12.1f}%\n", "virtual", name(staging),
                   senders, overload, r.pushed, r.dropped, r.damaged, 100 * r.goodput, 100 * r.worst_share);
      }
    }
  }
  fmt::print(
      "\noverload: what the senders could push, in links. tail drop: no credits, and a NIC that drops what "
      "does\n"
      "not fit. overwrite: no credits, and slots that are plain memory. dropped: payload refused, or stored "
      "over\n"
      "before the NIC was done with it. damaged: packets that left with another payload. goodput: of the "
      "link.\n"
      "worst share: the least that a sender with a live peer got while one was silent, of its fair share.\n");
}

}  // namespace
}  // namespace gdx::sim

int main() { gdx::sim::print_table(); }
