// One open of the device node, and what its methods work on.
#pragma once

#include <map>
#include <memory>

#include "driver-shim/softhca/devx/commands.h"
#include "driver-shim/softhca/devx/umem_table.h"
#include "driver-shim/softhca/uverbs/event_channel.h"
#include "driver-shim/softhca/uverbs/gpu_copies.h"
#include "driver-shim/softhca/uverbs/objects.h"
#include "driver-shim/softhca/uverbs/page_file.h"

namespace gdx::softhca::uverbs {

// The program's ends of event channels, over all contexts: a close of one must find its channel.
// Threads: the device lock.
class ChannelRegistry {
 public:
  virtual ~ChannelRegistry() = default;
  // Errors: the errno of socketpair(2); EMFILE for a descriptor above what is tracked.
  virtual ErrnoOr<std::shared_ptr<EventChannel>> open_channel() = 0;
  // Errors: EBADF.
  virtual ErrnoOr<std::shared_ptr<EventChannel>> find_channel(int user_fd) = 0;
};

struct Context;
// Returns whether `context` made the object. methods_devx.cpp defines it.
bool owns(const Context& context, devx::Named kind, std::uint32_t number);

// Threads: the device lock.
struct Context {
  Context(Hca& the_hca, PageFile the_pages, ChannelRegistry& the_channels)
      : hca(the_hca),
        pages(std::move(the_pages)),
        channels(the_channels),
        gpus(the_hca),
        commands(the_hca, umems,
                 [this](devx::Named kind, std::uint32_t number) { return owns(*this, kind, number); }) {}
  ~Context() { objects.clear(); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  Hca& hca;
  PageFile pages;
  ChannelRegistry& channels;
  bool counted = false;    // pages.is_open() detects its end; else the close of its first descriptor
  int shared_number = -1;  // number of the descriptor whose close alone ends the context
  bool opened = false;     // GET_CONTEXT has been here
  bool devx = false;       // the open requested DevX, too
  std::shared_ptr<EventChannel> asyncs;
  GpuCopies gpus;
  devx::UmemTable umems;
  devx::Commands commands;
  ObjectTable objects;
  InventoryRecord record;  // record of the open itself
};

// Adds `object` and stores its handle in attribute `id`; removes it if that fails.
Errno publish(Context& context, class Attributes& request, std::uint16_t id, std::unique_ptr<Object> object);

}  // namespace gdx::softhca::uverbs
