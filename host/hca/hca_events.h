// Asynchronous events of one open HCA, for all who use it in this process.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/result.h"
#include "host/hca/handles.h"
#include "proto/ipc/messages.h"

namespace gdx {

// The one reader of its context's events, because each is read by one reader only: gdxd's loop calls next(),
// and elsewhere a thread does so while watch() is held. Another context of the HCA, such as a program's own,
// is told the same events.
//
// A queue pair of DevX tells its events to subscribers only. A port that goes down ends nothing: queue pairs
// send again until their retries are exceeded, and live on if it is back before.
// Source: IBA 11.6.3; Linux drivers/infiniband/hw/mlx5/devx.c, devx_event_notifier.
// Threads: any.
class HcaEvents {
 public:
  // Called with the event that ends what it stands for, by a thread with this object locked: it may only
  // store and log.
  using Act = std::function<void(ibv_event_type)>;

  HcaEvents(ibv_context* context, std::string hca_name, std::uint8_t port);
  HcaEvents(const HcaEvents&) = delete;
  HcaEvents& operator=(const HcaEvents&) = delete;

  // Returns the next event of the device or its port that users should know, if one is there. Acts on all
  // others before it. Does not wait. The last one is that the HCA has failed.
  [[nodiscard]] std::optional<ipc::Event> next();
  // Returns "port 1 of HCA gdx0 is up".
  [[nodiscard]] std::string text_of(ipc::Event event) const;

  // Registers `act` for the failure of the HCA, and of `queue_pair` unless it is null; at once if the HCA has
  // failed before. Ends with the returned object, once `act` has returned.
  [[nodiscard]] std::shared_ptr<void> on_failure(mlx5dv_devx_obj* queue_pair, Act act);
  // Returns the thread that reads events, which ends with its last holder. Errors: kNoMemory.
  [[nodiscard]] Result<std::shared_ptr<void>> watch();

 private:
  class Reader;
  void subscribe(mlx5dv_devx_obj* queue_pair, std::uint64_t number);
  void act_on_queue_pairs();
  void fail_all();
  [[nodiscard]] bool has_failed();

  ibv_context* context_;
  std::string hca_name_;
  std::uint8_t port_;
  EventChannelHandle queue_pairs_;  // null: the kernel lacks such channels
  std::mutex mutex_;                // guards all below
  bool failed_ = false;
  bool told_missing_ = false;
  std::map<std::uint64_t, Act> acts_;  // by number, which is the subscription's cookie
  std::uint64_t last_number_ = 0;
  std::weak_ptr<Reader> reader_;
};

}  // namespace gdx
