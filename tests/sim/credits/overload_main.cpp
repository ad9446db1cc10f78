// gdx_overload: the overload experiment as a table.
#include <fmt/format.h>

#include <string>

#include "tests/sim/credits/overload.h"

namespace gdx::sim {
namespace {

const char* name(Staging staging) {
  switch (staging) {
    case Staging::kCredits: return "credits";
    case Staging::kOverwrite: return "overwrite";
    case Staging::kTailDrop: return "tail drop";
    case Staging::kPartition: return "partition";
    case Staging::kPull: return "pull";
  }
  return "";
}

constexpr Staging kAll[] = {Staging::kCredits, Staging::kPartition, Staging::kPull, Staging::kTailDrop,
                            Staging::kOverwrite};

// Uneven load: few of many endpoints send, or a lone one.
constexpr OverloadCase kUneven[] = {
    {.senders = 1, .overload = 8, .endpoints = 16, .has_silent_peer = false},
    {.senders = 2, .overload = 8, .endpoints = 16},
    {.senders = 1, .overload = 8, .endpoints = 24, .has_silent_peer = false},
    {.senders = 1, .overload = 8, .endpoints = 32, .has_silent_peer = false},
};

void print_rows(OverloadCase shape) {
  const std::string senders = shape.endpoints == 0 ? fmt::format("{}", shape.senders)
                                                   : fmt::format("{}/{}", shape.senders, shape.endpoints);
  for (const Staging staging : kAll) {
    shape.staging = staging;
    const OverloadResult r = run_overload(shape);
    fmt::print("{:<9}{:<10}{:>8}{:>8}x{:>9}{:>9}{:>9}{:>8.1f}%{:>12.1f}%\n", "virtual", name(staging),
               senders, shape.overload, r.pushed, r.dropped, r.damaged, 100 * r.goodput, 100 * r.worst_share);
  }
}

void print_table() {
  fmt::print(
      "modelled, in virtual time: {} slots of {} B, a link of 100 Gb/s, one peer silent for half of the run\n"
      "but where one sender is alone\n\n",
      kOverloadSlots, kOverloadSlotBytes);
  fmt::print("{:<9}{:<10}{:>8}{:>9}{:>9}{:>9}{:>9}{:>9}{:>13}\n", "where", "staging", "senders", "overload",
             "pushed", "dropped", "damaged", "goodput", "worst share");
  for (const std::uint32_t senders : {4u, 8u, 16u}) {
    for (const std::uint32_t overload : {2u, 8u}) print_rows({.senders = senders, .overload = overload});
  }
  for (const OverloadCase& shape : kUneven) print_rows(shape);
  fmt::print(
      "\noverload: what the senders could push, in links. tail drop: no credits, and a NIC that drops what "
      "does\n"
      "not fit. overwrite: no credits, and slots that are plain memory. partition: each endpoint keeps an "
      "equal\n"
      "part of the slots. pull: no slots, {} puts of each sender at a time. 2/16: 2 of 16 endpoints send. "
      "dropped:\n"
      "payload refused, or stored over before the NIC was done with it. damaged: packets that left with "
      "another\n"
      "payload. goodput: of the link. worst share: the least that a sender with a live peer got in the "
      "middle half\n"
      "of the run, in which one was silent, of its fair share.\n",
      kPullWindow);
}

}  // namespace
}  // namespace gdx::sim

int main() { gdx::sim::print_table(); }
