#include "driver-shim/softhca/wire/pcap.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/clock.h"
#include "base/log.h"
#include "proto/byte_order.h"

namespace gdx::softhca::wire {
namespace {

constexpr std::size_t kEthernetBytes = 14;
constexpr std::size_t kFlushAtBytes = std::size_t{1} << 20;

struct FileHeader {
  std::uint32_t magic = 0xa1b2c3d4;  // host byte order, microseconds
  std::uint16_t major_version = 2;
  std::uint16_t minor_version = 4;
  std::int32_t time_zone = 0;
  std::uint32_t accuracy = 0;
  std::uint32_t snap_length_bytes = 65535;
  std::uint32_t link_type = 1;  // LINKTYPE_ETHERNET
};

struct RecordHeader {
  std::uint32_t seconds;
  std::uint32_t microseconds;
  std::uint32_t captured_bytes;
  std::uint32_t original_bytes;
};

static_assert(sizeof(FileHeader) == 24 && sizeof(RecordHeader) == 16);

template <typename T>
void append(std::vector<std::byte>& out, const T& value) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof value);
}

void append_be16(std::vector<std::byte>& out, std::size_t value) {
  append(out, Be16(static_cast<std::uint16_t>(value)));
}

// Appends a locally administered MAC address that distinguishes hosts: 02:00 and the address's last four
// bytes.
void append_mac(std::vector<std::byte>& out, const Address& address) {
  append_be16(out, 0x0200);
  for (std::size_t i = 12; i < 16; ++i) append(out, address.gid[i]);
}

// Writes with SIGPIPE held back: a FIFO whose reader has left is an error of the capture, not the program's
// end.
ssize_t write_without_signal(int file, std::span<const std::byte> bytes) {
  sigset_t pipe_signal;
  sigset_t before;
  sigset_t pending;
  sigemptyset(&pipe_signal);
  sigaddset(&pipe_signal, SIGPIPE);
  sigpending(&pending);
  pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
  const ssize_t written = ::write(file, bytes.data(), bytes.size());
  const int error = errno;
  constexpr timespec kAtOnce{};
  if (written < 0 && error == EPIPE && sigismember(&pending, SIGPIPE) == 0) {
    while (sigtimedwait(&pipe_signal, nullptr, &kAtOnce) < 0 && errno == EINTR) {
    }
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return written;
}

// Until there is room for a write. False: the deadline came first.
bool wait_for_room(int file, std::uint64_t deadline_ns) {
  constexpr std::uint64_t kNsPerMs = 1'000'000;
  for (;;) {
    const std::uint64_t now_ns = monotonic_ns();
    if (now_ns >= deadline_ns) return false;
    pollfd room{file, POLLOUT, 0};
    const int ready = ::poll(&room, 1, static_cast<int>((deadline_ns - now_ns) / kNsPerMs + 1));
    if (ready != 0 && !(ready < 0 && errno == EINTR)) return ready > 0;
  }
}

}  // namespace

void append_frame(std::vector<std::byte>& out, const CapturedHeaders& headers,
                  std::span<const std::byte> datagram) {
  const auto& [source, destination, source_port, ip_id, ecn] = headers;
  const bool v4 = source.is_ipv4();
  append_mac(out, destination);
  append_mac(out, source);
  append_be16(out, v4 ? 0x0800 : 0x86dd);
  const std::size_t udp_bytes = roce::kUdpBytes + datagram.size();
  if (v4) {
    append(out, roce::ipv4_header(source.gid, destination.gid, ip_id, udp_bytes, ecn));
  } else {
    append(out, roce::ipv6_header(source.gid, destination.gid, udp_bytes, ecn));
  }
  append_be16(out, source_port);
  append_be16(out, roce::kUdpPort);
  append_be16(out, udp_bytes);
  append_be16(out, 0);  // no checksum, as Soft-RoCE sends it: the ICRC protects the packet
  out.insert(out.end(), datagram.begin(), datagram.end());
}

Result<std::unique_ptr<PcapWriter>> PcapWriter::open(const std::string& path, std::uint64_t reader_bound_ns) {
  // Opens without waiting, because the traffic must not wait for the reader of a FIFO.
  Descriptor file =
      Descriptor::keep(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0644));
  if (!file && errno == ENXIO) {
    return fail(Status::kSystem,
                "nobody reads the FIFO " + path + ": start its reader first, or name a file for the capture");
  }
  if (!file) {
    return fail(Status::kSystem, "cannot write the capture " + path + ": " + std::strerror(errno) +
                                     "; name a file in a directory that exists and is writable");
  }
  auto writer = std::unique_ptr<PcapWriter>(new PcapWriter(std::move(file), path, reader_bound_ns));
  append(writer->pending_, FileHeader{});
  writer->flush();
  return writer;
}

PcapWriter::PcapWriter(Descriptor file, std::string path, std::uint64_t reader_bound_ns)
    : file_(std::move(file)), path_(std::move(path)), reader_bound_ns_(reader_bound_ns) {}

PcapWriter::~PcapWriter() { flush(); }

void PcapWriter::record(std::uint64_t unix_time_ns, const CapturedHeaders& headers,
                        std::span<const std::byte> datagram) {
  const std::size_t frame_bytes = kEthernetBytes +
                                  (headers.source.is_ipv4() ? roce::kIpv4Bytes : roce::kIpv6Bytes) +
                                  roce::kUdpBytes + datagram.size();
  const auto length = static_cast<std::uint32_t>(frame_bytes);
  append(pending_,
         RecordHeader{static_cast<std::uint32_t>(unix_time_ns / 1'000'000'000),
                      static_cast<std::uint32_t>(unix_time_ns % 1'000'000'000 / 1000), length, length});
  append_frame(pending_, headers, datagram);
  if (pending_.size() >= kFlushAtBytes) flush();
}

void PcapWriter::flush() {
  std::span<const std::byte> rest(pending_);
  const std::uint64_t deadline_ns = monotonic_ns() + reader_bound_ns_;
  while (!rest.empty() && !failed_) {
    const ssize_t written = write_without_signal(file_.value(), rest);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) {
      if (wait_for_room(file_.value(), deadline_ns)) continue;
      log::warn("capture {} ends here: whoever reads it does not keep up; capture into a file", path_);
      failed_ = true;
      break;
    }
    if (written < 0) {
      // Ends the capture and not the traffic, which matters more.
      log::warn("capture {} ends here: {}; free some space and run again", path_, std::strerror(errno));
      failed_ = true;
      break;
    }
    rest = rest.subspan(static_cast<std::size_t>(written));
  }
  pending_.clear();
}

}  // namespace gdx::softhca::wire
