#include "host/direct/region.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>

#include "host/direct/gpu_sharing.h"

namespace gdx {
namespace {

constexpr std::uint32_t kRemoteAccess = kPeerWrite | kPeerRead | kPeerAtomic;

std::uint32_t remote_access(const Memory& memory) {
  return static_cast<std::uint32_t>(memory.access()) & kRemoteAccess;
}

void refuse(peer::Offer& offer, std::string_view reason) {
  offer.kind = peer::OfferKind::kNone;
  const std::size_t length = std::min(reason.size(), sizeof offer.reason - 1);
  std::copy_n(reason.begin(), length, std::begin(offer.reason));
}

// Makes a peer's text printable.
std::string shown_reason(const peer::Offer& offer) {
  std::string text(offer.reason, strnlen(offer.reason, sizeof offer.reason));
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text;
}

tl::unexpected<Error> impossible(const char* what) {
  return fail(Status::kInvalidArgument, fmt::format("it offers memory that cannot be: {}", what));
}

// A file that could shrink would be a fault here for every byte that it lost.
Result<void> check_file(int file, std::uint64_t bytes) {
  struct stat found {};
  if (fstat(file, &found) != 0) {
    return fail(Status::kSystem, fmt::format("cannot look at a peer's file: {}", std::strerror(errno)));
  }
  const int seals = fcntl(file, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return impossible("a file that may shrink");
  if (found.st_size < 0 || static_cast<std::uint64_t>(found.st_size) < bytes)
    return impossible("a region longer than its file");
  return {};
}

Result<MappedRegion> map_host_file(const peer::Offer& offer, std::span<const Descriptor> files) {
  if (files.size() != 1 || offer.offset != 0) return impossible("host memory of several files");
  const std::uint64_t bytes = offer.region.bytes;
  GDX_TRY(check_file(files[0].value(), bytes));
  // Rights are the window's to keep: a GPU's driver maps no pages that may only be read.
  void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, files[0].value(), 0);
  if (mapped == MAP_FAILED) {
    const int error = errno;
    return fail(error == ENOMEM ? Status::kNoMemory : Status::kSystem,
                fmt::format("cannot map {} bytes of it: {}", bytes, std::strerror(error)));
  }
  MappedRegion region;
  region.pages = std::shared_ptr<void>(mapped, [bytes](void* pages) { munmap(pages, bytes); });
  region.window.mapped = static_cast<std::byte*>(mapped);
  return region;
}

Result<MappedRegion> map_on_gpu(const peer::Offer& offer, std::span<const Descriptor> files, int ordinal) {
  const auto gpu = GDX_TRY(Gpu::open(ordinal));
  auto mapped = GDX_TRY(map_gpu_memory(gpu, offer, files));
  MappedRegion region;
  region.window.mapped = mapped.first;
  region.pages = std::move(mapped.pages);
  region.is_host_memory = false;
  return region;
}

Result<MappedRegion> map_by_kind(const peer::Offer& offer, std::span<const Descriptor> files, int gpu) {
  switch (offer.kind) {
    case peer::OfferKind::kNone: return fail(Status::kUnsupported, shown_reason(offer));
    case peer::OfferKind::kHostFile: return map_host_file(offer, files);
    case peer::OfferKind::kGpuParts:
    case peer::OfferKind::kGpuIpc: return map_on_gpu(offer, files, gpu);
  }
  return impossible("a kind that this version does not know");
}

}  // namespace

OfferedRegion offer_region(const Memory& memory) {
  OfferedRegion offered;
  offered.offer.region = memory.remote();
  offered.offer.access = remote_access(memory);
  if (memory.registered_by() != RegistrationWay::kHostPages) {
    auto files = offer_gpu_memory(memory.data(), memory.bytes(), offered.offer);
    if (!files) {
      refuse(offered.offer, files.error().message);
      return offered;
    }
    offered.owned = std::move(*files);
    for (const Descriptor& file : offered.owned) offered.files.push_back(file.value());
  } else if (memory.file() < 0) {
    refuse(offered.offer, "its memory is its own: allocate it by allocate_shareable_memory");
  } else {
    offered.offer.kind = peer::OfferKind::kHostFile;
    offered.offer.part_count = 1;
    offered.offer.part_bytes[0] = memory.bytes();
    offered.files.push_back(memory.file());
  }
  return offered;
}

Result<MappedRegion> map_region(const peer::Offer& offer, std::span<const Descriptor> files, int gpu) {
  const RemoteMemory& region = offer.region;
  if (region.bytes == 0 || region.address + (region.bytes - 1) < region.address)
    return impossible("a range that is empty or wraps");
  if (offer.part_count != files.size()) return impossible("another number of files than it sent");
  auto mapped = map_by_kind(offer, files, gpu);
  if (!mapped) return mapped;
  mapped->window.address = region.address;
  mapped->window.bytes = region.bytes;
  mapped->window.rkey = region.rkey;
  mapped->window.access = offer.access & kRemoteAccess;
  return mapped;
}

MappedRegion own_region(const Memory& memory) {
  MappedRegion region;
  const RemoteMemory named = memory.remote();
  region.window = {named.address, named.bytes, memory.data(), named.rkey, remote_access(memory)};
  return region;
}

}  // namespace gdx
