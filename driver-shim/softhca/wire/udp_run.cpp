#include "driver-shim/softhca/wire/udp_run.h"

#include <netinet/in.h>
#include <netinet/udp.h>

#include <cstring>

namespace gdx::softhca::wire {
namespace {

template <typename Value>
std::size_t put_control(std::byte* at, int level, int type, const Value& value) {
  cmsghdr control{};
  control.cmsg_level = level;
  control.cmsg_type = type;
  control.cmsg_len = CMSG_LEN(sizeof value);
  std::memcpy(at, &control, sizeof control);
  std::memcpy(at + CMSG_LEN(0), &value, sizeof value);
  return CMSG_SPACE(sizeof value);
}

}  // namespace

void SendControl::describe(const Run& run, msghdr& header) {
  *this = {};
  std::size_t used = 0;
  if (run.segments > 1) {
    used += put_control(bytes, SOL_UDP, UDP_SEGMENT, static_cast<std::uint16_t>(run.segment_bytes));
  }
  if (run.marked) {
    const bool v4 = run.destination.is_ipv4();
    used += put_control(bytes + used, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_TOS : IPV6_TCLASS,
                        static_cast<int>(roce::Ecn::kCongestionExperienced));
  }
  header.msg_control = bytes;
  header.msg_controllen = used;
}

std::optional<roce::Ecn> ecn_of(const cmsghdr& control) {
  if (control.cmsg_level == IPPROTO_IP && control.cmsg_type == IP_TOS) {
    return static_cast<roce::Ecn>(*CMSG_DATA(&control) & roce::kEcnMask);  // one byte
  }
  if (control.cmsg_level != IPPROTO_IPV6 || control.cmsg_type != IPV6_TCLASS) return std::nullopt;
  int traffic_class = 0;
  std::memcpy(&traffic_class, CMSG_DATA(&control), sizeof traffic_class);
  return static_cast<roce::Ecn>(traffic_class & roce::kEcnMask);
}

}  // namespace gdx::softhca::wire
