#include "host/programs/daemon/client_file.h"

#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/file_identity.h"
#include "base/holes.h"
#include "base/log.h"
#include "base/page_size.h"
#include "host/ipc/daemon.h"
#include "host/memory/shared_file.h"

namespace gdx::daemon {
namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 46;  // so that sums of a few do not wrap

}  // namespace

Result<MappedPages> map_client_file(const std::vector<Descriptor>& files, int own_file, std::uint64_t offset,
                                    std::uint64_t bytes) {
  if (files.size() != 1) return fail(Status::kInvalidArgument, "the request needs one open file");
  if (offset % page_bytes() != 0 || bytes == 0 || bytes > kMostBytes || offset > kMostBytes)
    return fail(
        Status::kInvalidArgument,
        fmt::format("{} bytes at offset {} of a file cannot be mapped: begin at a page", bytes, offset));
  const std::uint64_t whole = (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
  GDX_TRY(check_shared_file(files.front().value(), offset + whole));
  if (identity_of(files.front().value()) == identity_of(own_file))
    return fail(Status::kInvalidArgument, "the HCA's own file is no memory of a client");
  return ipc::map_shared(files.front(), offset, whole);
}

void refuse_client_holes(std::byte* first, std::size_t length_bytes) {
  if (refuse_holes(first, length_bytes)) return;
  log::warn_of_others(
      "gdxd cannot refuse holes in clients' files ({}), so their pages may count as its own: "
      "permit userfaultfd",
      std::strerror(errno));
}

Result<void> check_dmabuf(int file, std::uint64_t offset, std::uint64_t bytes) {
  struct statfs system {};
  if (fstatfs(file, &system) == 0 && system.f_type == DMA_BUF_MAGIC) return {};
  const off_t begin = lseek(file, 0, SEEK_CUR);
  if (begin < 0 || static_cast<std::uint64_t>(begin) > kMostBytes || offset > kMostBytes ||
      bytes > kMostBytes)
    return fail(Status::kInvalidArgument, "a dmabuf does not hold the bytes that were asked for");
  return check_shared_file(file, static_cast<std::uint64_t>(begin) + offset + bytes);
}

Result<MrHandle> register_dmabuf(const Hca& hca, const ipc::RegisterMemory& request,
                                 const std::vector<Descriptor>& files) {
  if (files.size() != 1) return fail(Status::kInvalidArgument, "the request needs one open file");
  const int file = files.front().value();
  GDX_TRY(check_dmabuf(file, request.file_offset, request.bytes));
  MrHandle mr(ibv_reg_dmabuf_mr(hca.pd(), request.file_offset, request.bytes, request.iova, file,
                                static_cast<int>(request.access)));
  if (mr) return mr;
  return fail(errno == ENOMEM ? Status::kNoMemory : Status::kUnsupported,
              fmt::format("HCA {} cannot register {} bytes of a dmabuf: {}", hca.name(), request.bytes,
                          std::strerror(errno)));
}

}  // namespace gdx::daemon
