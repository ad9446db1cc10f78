// A request in the kernel's layout, any part of which can be made wrong.
#pragma once

#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <vector>

namespace gdx::abi_tests {

class Request {
 public:
  Request(std::uint16_t object, std::uint16_t method) {
    header().object_id = object;
    header().method_id = method;
    finish();
  }
  Request& attribute(std::uint16_t id, std::uint16_t length, std::uint64_t data, std::uint16_t flags = 0) {
    ib_uverbs_attr added{};
    added.attr_id = id;
    added.len = length;
    added.flags = flags;
    added.data = data;
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(&added);
    bytes_.insert(bytes_.end(), bytes, bytes + sizeof added);
    ++count_;
    finish();
    return *this;
  }
  ib_uverbs_ioctl_hdr& header() { return *reinterpret_cast<ib_uverbs_ioctl_hdr*>(bytes_.data()); }
  std::vector<std::uint8_t>& bytes() { return bytes_; }
  int send(int fd) { return ioctl(fd, RDMA_VERBS_IOCTL, bytes_.data()) == 0 ? 0 : errno; }
  // Sends it with its last attribute in memory that cannot be written. Handles are answered in the request.
  int send_last_unwritable(int fd) {
    constexpr std::size_t kPageBytes = 4096;
    void* const pages =
        mmap(nullptr, 2 * kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    auto* const second = static_cast<std::uint8_t*>(pages) + kPageBytes;
    std::uint8_t* const request = second + sizeof(ib_uverbs_attr) - bytes_.size();
    std::memcpy(request, bytes_.data(), bytes_.size());
    mprotect(second, kPageBytes, PROT_READ);
    const int error = ioctl(fd, RDMA_VERBS_IOCTL, request) == 0 ? 0 : errno;
    munmap(pages, 2 * kPageBytes);
    return error;
  }

 private:
  void finish() {
    header().num_attrs = count_;
    header().length = static_cast<std::uint16_t>(bytes_.size());
    header().driver_id = RDMA_DRIVER_MLX5;
  }
  std::vector<std::uint8_t> bytes_ = std::vector<std::uint8_t>(sizeof(ib_uverbs_ioctl_hdr));
  std::uint16_t count_ = 0;
};

}  // namespace gdx::abi_tests
