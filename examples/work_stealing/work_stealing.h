// The kernel of work_stealing, as the host's file sees it.
#pragma once

#include <cstdint>

#include "proto/gpu/team.h"
#include "proto/status.h"

inline constexpr std::uint32_t kWorkers = 2;     // warps of each rank
inline constexpr std::uint32_t kNumbers = 48;    // of a task
inline constexpr std::uint32_t kMostTasks = 96;  // of a rank

// Some ranks have many tasks, some have few, some have none.
constexpr std::uint32_t tasks_of(std::uint32_t rank) {
  return rank % 4 == 3 ? 0 : kMostTasks / (1 + rank % 3 * 5);
}
constexpr std::uint64_t solve(std::uint64_t number) { return number * number + 7; }

// Memory of the symmetric heap.
struct Work {
  std::uint64_t* next;     // the queue: tasks below are taken; may pass the end
  std::uint64_t* tasks;    // kNumbers each
  std::uint64_t* results;  // kNumbers each
  std::uint64_t* done;     // by task: how often it was done
  std::uint64_t* total;    // at rank 0: tasks done by all
  std::uint64_t* was;      // by worker: the old value of an atomic
  std::uint64_t* scratch;  // by worker: kNumbers
  gdx::Status* status;     // by worker
};

// Works until all queues are empty.
[[nodiscard]] gdx::Status run_workers(const gdx::TeamHandle& team, const Work& work);
