// Moves patterned data over RC by every operation, in both directions, and checks every byte. The same
// program runs on both sides, against whatever device is there.
#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>

#include "tests/interop/peer_link.h"

namespace gdx::interop {
namespace {

constexpr std::size_t kSource = 0;  // source of data, and its destination: halves of the buffer
constexpr std::size_t kLanding = Device::kBufferBytes / 2;
constexpr std::size_t kHalfBytes = Device::kBufferBytes / 2;
constexpr std::byte kPoison{0xa5};
constexpr std::uint32_t kImmediate = 0x89abcdef;

struct Session {
  Device& device;
  Channel& channel;
  Queue& queue;
  const bool initiator;
  std::uint32_t step = 0;

  // Waits for the other side; `meet_next` also ends the step.
  void meet() { channel.meet(step); }
  void meet_next() { channel.meet(++step); }

  // Byte i of what moves at this step; both sides compute it.
  [[nodiscard]] std::byte pattern(std::size_t i) const {
    std::uint64_t x = (std::uint64_t{step} << 32 | i) * 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    return static_cast<std::byte>(x * 0xbf58476d1ce4e5b9u >> 56);
  }
  void fill(std::size_t offset, std::size_t length_bytes) {
    for (std::size_t i = 0; i < length_bytes; ++i) device.buffer()[offset + i] = pattern(i);
  }
  void poison_landing() { std::ranges::fill(device.buffer().subspan(kLanding, kHalfBytes), kPoison); }
  // The pattern at `offset` of the landing half, and around it nothing.
  void check_landing(std::string_view what, std::size_t offset, std::size_t length_bytes) {
    for (std::size_t i = 0; i < kHalfBytes; ++i) {
      const bool inside = i >= offset && i - offset < length_bytes;
      const std::byte expected = inside ? pattern(i - offset) : kPoison;
      const std::byte seen = device.buffer()[kLanding + i];
      if (seen == expected) continue;
      die("{} of {} bytes: byte {} is {:#04x}, not {:#04x}", what, length_bytes,
          static_cast<std::ptrdiff_t>(i) - static_cast<std::ptrdiff_t>(offset),
          std::to_integer<unsigned>(seen), std::to_integer<unsigned>(expected));
    }
  }
  ibv_wc expect(std::string_view what, ibv_wc_opcode opcode) {
    const ibv_wc wc = device.wait();
    if (wc.status != IBV_WC_SUCCESS) die("{}: {}", what, ibv_wc_status_str(wc.status));
    if (wc.opcode != opcode) die("{}: completion of kind {}, not {}", what, int{wc.opcode}, int{opcode});
    return wc;
  }
};

// Odd places, so that nothing is aligned by chance.
std::size_t odd_offset(const Session& session) { return 64 + session.step % 61; }

struct Kind {
  std::string_view name;
  ibv_wr_opcode opcode;
  bool is_send;
  bool has_immediate;
};
constexpr std::array<Kind, 4> kPushes = {{{"WRITE", IBV_WR_RDMA_WRITE, false, false},
                                          {"WRITE_IMM", IBV_WR_RDMA_WRITE_WITH_IMM, false, true},
                                          {"SEND", IBV_WR_SEND, true, false},
                                          {"SEND_IMM", IBV_WR_SEND_WITH_IMM, true, true}}};

void push(Session& session, const Kind& kind, std::size_t length_bytes) {
  const std::size_t offset = odd_offset(session);
  if (session.initiator) {
    session.fill(kSource + 1, length_bytes);
    session.meet();
    Queue::Request request = session.queue.rdma(kind.opcode, kSource + 1, length_bytes, kLanding + offset);
    if (kind.is_send) request = session.queue.request(kind.opcode, kSource + 1, length_bytes);
    if (kind.has_immediate) request.wr.imm_data = htonl(kImmediate);
    session.queue.post(request);
    session.expect(kind.name, kind.is_send ? IBV_WC_SEND : IBV_WC_RDMA_WRITE);
  } else {
    session.poison_landing();
    // A receive takes a WRITE's immediate only, and must not be written to.
    if (kind.is_send || kind.has_immediate) session.queue.post_receive(kLanding + offset, length_bytes + 1);
    session.meet();
    if (kind.is_send || kind.has_immediate) {
      const ibv_wc wc = session.expect(kind.name, kind.is_send ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM);
      if (wc.byte_len != length_bytes)
        die("{}: {} bytes received, not {}", kind.name, wc.byte_len, length_bytes);
      if (((wc.wc_flags & IBV_WC_WITH_IMM) != 0) != kind.has_immediate)
        die("{}: immediate flag wrong", kind.name);
      if (kind.has_immediate && ntohl(wc.imm_data) != kImmediate) die("{}: immediate wrong", kind.name);
    }
  }
  session.meet();
  if (!session.initiator) session.check_landing(kind.name, offset, length_bytes);
  session.meet_next();
}

void read(Session& session, std::size_t length_bytes) {
  const std::size_t offset = odd_offset(session);
  if (session.initiator) {
    session.poison_landing();
    session.meet();
    Queue::Request request =
        session.queue.rdma(IBV_WR_RDMA_READ, kLanding + offset, length_bytes, kSource + 3);
    session.queue.post(request);
    session.expect("READ", IBV_WC_RDMA_READ);
    session.check_landing("READ", offset, length_bytes);
  } else {
    session.fill(kSource + 3, length_bytes);
    session.meet();
  }
  session.meet_next();
}

// READ `number` fetched into `landing` what the WRITE before it had brought from kSource. At once, because a
// completion that promises too much may be the last one before the queue pair dies.
void check_read_back(Session& session, std::size_t number, std::size_t piece_bytes, std::size_t landing) {
  const auto buffer = session.device.buffer();
  for (std::size_t i = number * piece_bytes; i < (number + 1) * piece_bytes; ++i) {
    if (buffer[kSource + i] == buffer[landing + i]) continue;
    die("many at once: READ {} is complete, but byte {} of {} is {:#04x}, not the {:#04x} of the WRITE "
        "before it",
        number, i - number * piece_bytes, piece_bytes, std::to_integer<unsigned>(buffer[landing + i]),
        std::to_integer<unsigned>(buffer[kSource + i]));
  }
}

// More at once than the window and the outstanding READs allow, mixed; completions keep the order.
void many_at_once(Session& session, std::size_t piece_bytes) {
  constexpr std::size_t kPieces = 32;
  constexpr std::size_t kAside = kHalfBytes / 2;  // of the source half: what the READs fetch
  if (!session.initiator) session.poison_landing();
  session.fill(kSource, kPieces * piece_bytes);
  if (session.initiator) {
    session.meet();
    for (std::size_t i = 0; i < kPieces; ++i) {
      const std::size_t at = i * piece_bytes;
      Queue::Request request =
          session.queue.rdma(IBV_WR_RDMA_WRITE, kSource + at, piece_bytes, kLanding + at);
      request.wr.wr_id = 2 * i;
      session.queue.post(request);
      // It fetches what the WRITE before it has left there.
      request = session.queue.rdma(IBV_WR_RDMA_READ, kSource + kAside + at, piece_bytes, kLanding + at);
      request.wr.wr_id = 2 * i + 1;
      session.queue.post(request);
    }
    for (std::size_t i = 0; i < 2 * kPieces; ++i) {
      const bool is_read = i % 2 != 0;
      const ibv_wc wc = session.expect("many at once", is_read ? IBV_WC_RDMA_READ : IBV_WC_RDMA_WRITE);
      if (wc.wr_id != i) die("many at once: completion {} came in place {}", wc.wr_id, i);
      if (is_read) check_read_back(session, i / 2, piece_bytes, kSource + kAside);
    }
  } else {
    session.meet();
  }
  session.meet();
  if (!session.initiator) session.check_landing("many at once", 0, kPieces * piece_bytes);
  session.meet_next();
}

std::uint64_t word_at(Session& session, std::size_t offset) {
  std::uint64_t word = 0;
  std::memcpy(&word, session.device.buffer().data() + offset, sizeof word);
  return word;
}

// Each atomic is carried out exactly once: every old value is the sum so far.
void atomics(Session& session) {
  constexpr std::uint64_t kStart = 0xfffffffffffffff0;
  constexpr std::uint64_t kAdd = 0x0000000300000007;
  constexpr std::size_t kAdds = 40;
  constexpr std::uint64_t kSwapped = 0x1122334455667788;
  const std::uint64_t sum = kStart + kAdds * kAdd;
  if (session.initiator) {
    session.meet();
    const auto post = [&](ibv_wr_opcode opcode, std::size_t at, std::uint64_t compare_add,
                          std::uint64_t swap) {
      Queue::Request request = session.queue.request(opcode, kSource + 8 * at, 8);
      request.wr.wr.atomic = {.remote_addr = session.queue.remote_address(kLanding + 8),
                              .compare_add = compare_add,
                              .swap = swap,
                              .rkey = session.queue.rkey()};
      session.queue.post(request);
    };
    for (std::size_t i = 0; i < kAdds; ++i) post(IBV_WR_ATOMIC_FETCH_AND_ADD, i, kAdd, 0);
    post(IBV_WR_ATOMIC_CMP_AND_SWP, kAdds, sum + 1, 0);         // differs: left alone
    post(IBV_WR_ATOMIC_CMP_AND_SWP, kAdds + 1, sum, kSwapped);  // equal: swapped
    for (std::size_t i = 0; i < kAdds; ++i) session.expect("FETCH_ADD", IBV_WC_FETCH_ADD);
    for (std::size_t i = 0; i < 2; ++i) session.expect("COMP_SWAP", IBV_WC_COMP_SWAP);
    for (std::size_t i = 0; i < kAdds + 2; ++i) {
      const std::uint64_t expected = i < kAdds ? kStart + i * kAdd : sum;
      const std::uint64_t old = word_at(session, kSource + 8 * i);
      if (old != expected) die("atomic {}: the old value is {:#x}, not {:#x}", i, old, expected);
    }
  } else {
    session.poison_landing();
    std::memcpy(session.device.buffer().data() + kLanding + 8, &kStart, sizeof kStart);
    session.meet();
  }
  session.meet();
  if (!session.initiator && word_at(session, kLanding + 8) != kSwapped) {
    die("atomics left {:#x}, not {:#x}", word_at(session, kLanding + 8), kSwapped);
  }
  session.meet_next();
}

// The receive is posted when the SENDs are already on their way: RNR NAKs, and the order kept behind them.
void late_receive(Session& session) {
  constexpr std::size_t kBytes = 3000;
  const std::size_t offset = odd_offset(session);
  if (session.initiator) {
    session.fill(kSource, kBytes);
    Queue::Request first = session.queue.request(IBV_WR_SEND, kSource, kBytes / 2);
    Queue::Request second = session.queue.request(IBV_WR_SEND, kSource + kBytes / 2, kBytes / 2);
    session.queue.post(first);
    session.queue.post(second);
    session.meet();
    for (int i = 0; i < 2; ++i) session.expect("SEND to a late receive", IBV_WC_SEND);
  } else {
    session.poison_landing();
    session.meet();
    for (const std::size_t at : {std::size_t{0}, kBytes / 2}) {
      session.queue.post_receive(kLanding + offset + at, kBytes / 2);
    }
    for (int i = 0; i < 2; ++i) session.expect("late receive", IBV_WC_RECV);
    session.check_landing("late receive", offset, kBytes);
  }
  session.meet_next();
}

struct Refusal {
  std::string_view name;
  ibv_wc_status status;
  ibv_wc_status soft_roce_status;  // Soft-RoCE's NAK, if it differs from the specification's
  int (*post)(Session&);           // 0, or the errno of a side that refuses its own request
};

int post_bad_key(Session& session) {
  Queue::Request request = session.queue.rdma(IBV_WR_RDMA_WRITE, kSource, 64, kLanding);
  request.wr.wr.rdma.rkey ^= 0x5a;
  return session.queue.try_post(request);
}
int post_beyond_range(Session& session) {
  Queue::Request request = session.queue.rdma(IBV_WR_RDMA_READ, kSource, 64, Device::kBufferBytes - 32);
  return session.queue.try_post(request);
}
int post_misaligned_atomic(Session& session) {
  Queue::Request request = session.queue.request(IBV_WR_ATOMIC_FETCH_AND_ADD, kSource, 8);
  request.wr.wr.atomic = {.remote_addr = session.queue.remote_address(kLanding + 4),
                          .compare_add = 1,
                          .swap = 0,
                          .rkey = session.queue.rkey()};
  return session.queue.try_post(request);
}
int post_too_long_send(Session& session) {
  Queue::Request request = session.queue.request(IBV_WR_SEND, kSource, 4096);
  return session.queue.try_post(request);
}

constexpr std::array<Refusal, 4> kRefusals = {{
    {"WRITE with a wrong key", IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR, post_bad_key},
    {"READ beyond the region", IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR, post_beyond_range},
    {"misaligned atomic", IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_INV_REQ_ERR, post_misaligned_atomic},
    {"SEND longer than its receive", IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_OP_ERR, post_too_long_send},
}};

void expect_refusal(Session& session, const Refusal& wanted) {
  Queue::Request next = session.queue.rdma(IBV_WR_RDMA_WRITE, kSource, 64, kLanding);
  session.queue.post(next);
  const ibv_wc refused = session.device.wait();
  if (refused.status != wanted.status && refused.status != wanted.soft_roce_status) {
    die("{}: {}, not {}", wanted.name, ibv_wc_status_str(refused.status), ibv_wc_status_str(wanted.status));
  }
  const ibv_wc flushed = session.device.wait();
  if (flushed.status != IBV_WC_WR_FLUSH_ERR) {
    die("behind {}: {}, not flushed", wanted.name, ibv_wc_status_str(flushed.status));
  }
}

// Each costs its queue pair: the request fails with the status that the NAK names, and what follows is
// flushed. Soft-RoCE does not even take a misaligned atomic from its own program.
void refusal(Device& device, Channel& channel, const Refusal& wanted, bool initiator) {
  Queue queue(device, channel);
  Session session{device, channel, queue, initiator};
  if (initiator) {
    session.meet_next();
    if (const int error = wanted.post(session); error == 0) {
      expect_refusal(session, wanted);
    } else if (error != EINVAL) {
      die("{}: {}", wanted.name, std::strerror(error));
    }
    session.meet_next();
  } else {
    session.poison_landing();
    if (wanted.post == post_too_long_send) queue.post_receive(kLanding, 64);
    session.meet_next();
    session.meet_next();
    if (wanted.post == post_too_long_send) {
      const ibv_wc wc = device.wait();
      if (wc.status != IBV_WC_LOC_LEN_ERR && wc.status != IBV_WC_LOC_QP_OP_ERR) {
        die("short receive: {}", ibv_wc_status_str(wc.status));
      }
    } else {
      session.check_landing(wanted.name, 0, 0);
    }
  }
  session.meet_next();
}

void run(const Options& options) {
  Channel channel(options);
  Device device(options);
  const std::size_t mtu = options.mtu_bytes;
  const std::array<std::size_t, 9> sizes = {0,      1, 7, mtu - 1, mtu, mtu + 1, 4 * mtu - 2, 65 * mtu + 3,
                                            300'001};
  const bool is_client = !options.server.empty();
  for (const bool client_initiates : {true, false}) {
    Queue queue(device, channel);
    Session session{device, channel, queue, client_initiates == is_client};
    for (const std::size_t size : sizes) {
      for (const Kind& kind : kPushes) push(session, kind, size);
      read(session, size);
    }
    many_at_once(session, std::min<std::size_t>(2 * mtu + 5, 7000));
    atomics(session);
    late_receive(session);
    // A NAK that kills its queue is sent once: lost, it leaves the other side repeating itself.
    if (options.refusals) {
      for (const Refusal& wanted : kRefusals) refusal(device, channel, wanted, session.initiator);
    }
    fmt::print("{} initiated, {} answered: all bytes as they must be\n",
               client_initiates ? "client" : "server", client_initiates ? "server" : "client");
  }
  if (const auto lost = device.packets_lost()) fmt::print("this HCA lost {} packets\n", *lost);
}

template <typename T>
T number(const char* text, std::string_view name) {
  T value{};
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), value);
  if (error != std::errc{} || *end != '\0') die("{} is no {}", text, name);
  return value;
}

}  // namespace
}  // namespace gdx::interop

int main(int count, char** arguments) {
  using namespace gdx::interop;
  if (count != 5 && count != 6) die("usage: peer PORT GID_INDEX MTU data|data+refusals [SERVER]");
  Options options;
  options.port = number<std::uint16_t>(arguments[1], "port");
  options.gid_index = number<std::uint8_t>(arguments[2], "GID index");
  options.mtu_bytes = number<std::uint32_t>(arguments[3], "MTU");
  options.refusals = std::string_view(arguments[4]) == "data+refusals";
  if (count == 6) options.server = arguments[5];
  run(options);
}
