#include "host/peer/region.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>

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

// What a peer wrote, made fit to be shown.
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

Result<MappedRegion> map_host_file(const peer::Offer& offer, std::span<Descriptor> files) {
  if (files.size() != 1 || offer.offset != 0) return impossible("host memory of several files");
  const std::uint64_t bytes = offer.region.bytes;
  if (auto checked = check_file(files[0].value(), bytes); !checked) return tl::unexpected(checked.error());
  // What the registration does not permit is not even mapped so.
  const bool changes = (offer.access & (kPeerWrite | kPeerAtomic)) != 0;
  void* const mapped =
      mmap(nullptr, bytes, changes ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, files[0].value(), 0);
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

Result<MappedRegion> map_by_kind(const peer::Offer& offer, std::span<Descriptor> files) {
  switch (offer.kind) {
    case peer::OfferKind::kNone: return fail(Status::kUnsupported, shown_reason(offer));
    case peer::OfferKind::kHostFile: return map_host_file(offer, files);
    case peer::OfferKind::kGpuParts:
    case peer::OfferKind::kGpuIpc: break;
  }
  return impossible("a kind that this version does not know");
}

}  // namespace

OfferedRegion offer_region(const Memory& memory) {
  OfferedRegion offered;
  offered.offer.region = memory.remote();
  offered.offer.access = remote_access(memory);
  if (memory.registered_by() != RegistrationWay::kHostPages) {
    refuse(offered.offer, "its memory of a GPU is not shared between processes yet: use allocate_shareable_memory");
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

Result<MappedRegion> map_region(const peer::Offer& offer, std::span<Descriptor> files) {
  const RemoteMemory& region = offer.region;
  if (region.bytes == 0 || region.address + (region.bytes - 1) < region.address)
    return impossible("a range that is empty or wraps");
  if (offer.part_count != files.size()) return impossible("another number of files than it sent");
  auto mapped = map_by_kind(offer, files);
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
