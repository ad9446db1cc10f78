#include <endian.h>
#include <infiniband/ib.h>

#include "driver-shim/softhca/rdma_cm/rdma_cm_address.h"
#include "tests/unit/rdma_cm/programs.h"

namespace gdx::softhca::uverbs {
namespace addresses_test {

// As the Linux kernel's headers lay them out, byte by byte.
template <typename Sockaddr>
__kernel_sockaddr_storage bytes_of(const Sockaddr& address) {
  __kernel_sockaddr_storage storage{};
  std::memcpy(&storage, &address, sizeof address);
  return storage;
}

bool is_invalid(const ErrnoOr<CmAddress>& read) { return !read && read.error() == EINVAL; }

struct Form {
  __kernel_sockaddr_storage bytes;
  std::size_t length_bytes;
  CmAddress address;
};

std::vector<Form> forms() {
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(0x1234);
  v4.sin_addr.s_addr = htonl(0x7f010203);
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(0x5678);
  for (std::uint8_t i = 0; i < 16; ++i) v6.sin6_addr.s6_addr[i] = 0xf0 + i;
  sockaddr_ib ib{};
  ib.sib_family = AF_IB;
  std::copy_n(v6.sin6_addr.s6_addr, 16, ib.sib_addr.sib_raw);
  ib.sib_sid = htobe64(0x9abc);
  ib.sib_sid_mask = htobe64(0xffff);
  wire::Address gid;
  std::copy_n(v6.sin6_addr.s6_addr, 16, gid.gid.begin());
  return {{bytes_of(v4), sizeof v4, {AF_INET, wire::Address::ipv4(0x7f010203), 0x1234}},
          {bytes_of(v6), sizeof v6, {AF_INET6, gid, 0x5678}},
          {bytes_of(ib), sizeof ib, {AF_IB, gid, 0x9abc}}};
}

TEST(CmAddress, each_family_is_read_and_written_whole_and_refused_a_byte_shorter) {
  for (const Form& form : forms()) {
    const ErrnoOr<CmAddress> read = read_address(&form.bytes, form.length_bytes);
    ASSERT_TRUE(read) << form.address.family;
    EXPECT_EQ(read->family, form.address.family);
    EXPECT_EQ(read->address, form.address.address) << form.address.family;
    EXPECT_EQ(read->port, form.address.port);
    __kernel_sockaddr_storage written;
    std::memset(&written, 0xff, sizeof written);
    EXPECT_EQ(write_address(form.address, written), form.length_bytes);
    EXPECT_PRED_FORMAT2(same_bytes, written, form.bytes);
    for (const std::size_t shorter : {form.length_bytes - 1, std::size_t{1}})
      EXPECT_TRUE(is_invalid(read_address(&form.bytes, shorter))) << form.address.family;
  }
  __kernel_sockaddr_storage none;
  std::memset(&none, 0xff, sizeof none);
  EXPECT_TRUE(is_invalid(read_address(&none, sizeof none)));
  EXPECT_EQ(write_address({}, none), 0u);
  EXPECT_PRED_FORMAT2(same_bytes, none, __kernel_sockaddr_storage{});
}

TEST(CmAddress, any_and_loopback_are_told_from_their_neighbours) {
  struct Case {
    const char* text;
    bool any;
    bool loopback;
  };
  for (const auto& [text, any, loopback] :
       {Case{"0.0.0.0", true, false}, Case{"0.0.0.1", false, false}, Case{"1.0.0.0", false, false},
        Case{"127.0.0.1", false, true}, Case{"127.255.0.0", false, true}, Case{"126.0.0.1", false, false},
        Case{"128.0.0.1", false, false}, Case{"::", true, false}, Case{"::1", false, true},
        Case{"::2", false, false}, Case{"100::1", false, false}, Case{"100::", false, false},
        Case{"::101", false, false}}) {
    EXPECT_EQ(address_of(text, 1).is_any(), any) << text;
    EXPECT_EQ(address_of(text, 1).is_loopback(), loopback) << text;
  }
  CmAddress ib = address_of("::1", 0);
  ib.family = AF_IB;
  EXPECT_FALSE(ib.is_loopback());
  EXPECT_EQ(any_address(AF_INET).address, wire::Address::ipv4(0));
  EXPECT_EQ(any_address(AF_INET).family, AF_INET);
  EXPECT_EQ(any_address(AF_INET6).address, wire::Address{});
}

TEST(CmAddress, the_kernel_is_asked_for_routes_and_own_addresses) {
  const int free = dup(STDIN_FILENO);
  close(free);
  EXPECT_EQ(route_error(wire::Address::ipv4(0x7f000009)), 0);
  EXPECT_EQ(route_error(wire::Address::ipv4(INADDR_BROADCAST)), EACCES);
  EXPECT_TRUE(is_host_address(wire::Address::ipv4(0x7f000009)));
  EXPECT_FALSE(is_host_address(wire::Address::ipv4(0xc0000201)));  // 192.0.2.1, for documentation
  EXPECT_FALSE(is_host_address(*wire::Address::parse("2001:db8::7f00:1")));
  EXPECT_TRUE(may_bind_port(0xffff));
  const int next = dup(STDIN_FILENO);
  EXPECT_EQ(next, free);
  close(next);
}

}  // namespace addresses_test
}  // namespace gdx::softhca::uverbs
