#include "driver-shim/softhca/wire/pcap.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "base/descriptor.h"
#include "driver-shim/softhca/wire/icrc_check.h"
#include "proto/roce/codec.h"

namespace gdx::softhca::wire {
namespace pcap_test {

const Address kSource = Address::ipv4(0x7f000002);
const Address kDestination = Address::ipv4(0x7f000003);

class PcapFile : public testing::Test {
 protected:
  PcapFile() : path_(testing::TempDir() + "gdx_pcap_" + std::to_string(::getpid()) + ".pcap") {}
  ~PcapFile() override { std::filesystem::remove(path_); }

  [[nodiscard]] std::vector<unsigned char> bytes() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::string path_;
};

// A WRITE ONLY of 8 bytes, ICRC included.
std::vector<std::byte> write_only(std::uint16_t ip_id) {
  roce::Headers headers;
  headers.bth.opcode = roce::Opcode::kRcWriteOnly;
  headers.bth.pkey = roce::kDefaultPkey;
  headers.bth.destination_qpn = 0x1234;
  headers.bth.psn = 77;
  headers.reth = {.address = 0x1000, .rkey = 0xabcd, .length_bytes = 8};
  std::vector<std::byte> datagram(roce::kBthBytes + roce::kRethBytes + 8);
  EXPECT_EQ(roce::encode(headers, datagram), roce::kBthBytes + roce::kRethBytes);
  const std::uint32_t icrc = icrc_between(kSource, kDestination, 4791, ip_id, datagram);
  const auto* at = reinterpret_cast<const std::byte*>(&icrc);
  datagram.insert(datagram.end(), at, at + sizeof icrc);
  return datagram;
}

TEST_F(PcapFile, record_flush_gives_a_frame_with_valid_ip_header) {
  auto writer = PcapWriter::open(path_);
  ASSERT_TRUE(writer);
  EXPECT_EQ(bytes().size(), 24u) << "the file header is there before the first packet";
  const std::vector<std::byte> datagram = write_only(3);
  (*writer)->record(5'000'006'000, {kSource, kDestination, 4791, 3, roce::Ecn::kCapableZero}, datagram);
  (*writer)->flush();

  const std::vector<unsigned char> file = bytes();
  const std::size_t frame_bytes = 14 + 20 + 8 + datagram.size();
  ASSERT_EQ(file.size(), 24 + 16 + frame_bytes);
  EXPECT_THAT(std::vector(file.begin(), file.begin() + 4), testing::ElementsAre(0xd4, 0xc3, 0xb2, 0xa1));
  EXPECT_EQ(file[20], 1) << "Ethernet";
  EXPECT_EQ(file[24], 5) << "seconds";
  EXPECT_EQ(file[28], 6) << "microseconds";
  const unsigned char* ip = file.data() + 24 + 16 + 14;
  EXPECT_EQ(ip[0], 0x45);
  EXPECT_EQ(ip[1], 2) << "ECT(0)";
  EXPECT_EQ(ip[5], 3) << "IP id";
  EXPECT_EQ(ip[6], 0x40) << "DF";
  std::uint32_t sum = 0;
  for (int i = 0; i < 20; i += 2) sum += static_cast<std::uint32_t>(ip[i] << 8 | ip[i + 1]);
  EXPECT_EQ((sum & 0xffff) + (sum >> 16), 0xffffu) << "IP checksum";
  EXPECT_EQ(ip[20] << 8 | ip[21], 4791);
  EXPECT_EQ(ip[26] << 8 | ip[27], 0) << "UDP checksum";
}

std::vector<int> numbers(std::span<const std::byte> bytes) {
  std::vector<int> made;
  for (const std::byte byte : bytes) made.push_back(std::to_integer<int>(byte));
  return made;
}

TEST_F(PcapFile, frame_of_ipv6_has_every_header_whole) {
  const Address from = *Address::parse("fd67::102:304");
  const Address to = *Address::parse("fd68::506:708");
  const std::vector<std::byte> datagram = {std::byte{0xaa}, std::byte{0xbb}};
  std::vector<std::byte> frame;
  append_frame(frame, {from, to, 0xc123, 9, roce::Ecn::kCongestionExperienced}, datagram);
  std::vector<int> expected = {2, 0,    5,    6,    7,    8, 2, 0, 1,  2,  3,
                               4, 0x86, 0xdd, 0x60, 0x30, 0, 0, 0, 10, 17, 64};
  for (const Address& address : {from, to})
    expected.insert(expected.end(), address.gid.begin(), address.gid.end());
  for (const int byte : {0xc1, 0x23, 0x12, 0xb7, 0, 10, 0, 0, 0xaa, 0xbb}) expected.push_back(byte);
  EXPECT_EQ(numbers(frame), expected);
}

// Records one after another, each with its own time and lengths; the last are written at the end.
TEST_F(PcapFile, records_of_both_families_follow_the_file_header) {
  const std::vector<std::byte> datagram = write_only(3);
  const CapturedHeaders v6{*Address::parse("fd67::1"), *Address::parse("fd67::2")};
  const CapturedHeaders v4{kSource, kDestination, 0xc123, 3};
  {
    auto writer = PcapWriter::open(path_);
    ASSERT_TRUE(writer);
    (*writer)->record(1'999'999'999, v6, datagram);
    (*writer)->record(0x1'0203'0405ull * 1'000'000'000, v4, datagram);
    EXPECT_EQ(bytes().size(), 24u);
  }
  std::vector<std::byte> expected;
  const auto append_words = [&expected](std::initializer_list<std::uint32_t> words) {
    for (const std::uint32_t word : words) {
      const auto* at = reinterpret_cast<const std::byte*>(&word);
      expected.insert(expected.end(), at, at + sizeof word);
    }
  };
  append_words({0xa1b2c3d4, 4 << 16 | 2, 0, 0, 65535, 1});
  const auto of_v6 = static_cast<std::uint32_t>(14 + 40 + 8 + datagram.size());
  append_words({1, 999'999, of_v6, of_v6});
  append_frame(expected, v6, datagram);
  append_words({0x02030405, 0, of_v6 - 20, of_v6 - 20});
  append_frame(expected, v4, datagram);
  const std::vector<unsigned char> file = bytes();
  EXPECT_EQ(numbers(std::as_bytes(std::span(file))), numbers(expected));
}

TEST_F(PcapFile, much_is_written_before_anybody_flushes) {
  auto writer = PcapWriter::open(path_);
  ASSERT_TRUE(writer);
  const std::vector<std::byte> datagram(65000);
  for (int i = 0; i < 17; ++i) {
    EXPECT_EQ(bytes().size() > 24, i > 16) << i;
    (*writer)->record(0, {kSource, kDestination}, datagram);
  }
  EXPECT_GT(bytes().size(), std::size_t{1} << 20);
}

TEST_F(PcapFile, unwritable_path_is_an_error_that_names_it) {
  const auto writer = PcapWriter::open("/no/such/directory/x.pcap");
  ASSERT_FALSE(writer);
  EXPECT_EQ(writer.error().status, Status::kSystem);
  EXPECT_THAT(writer.error().message, testing::AllOf(testing::HasSubstr("/no/such/directory/x.pcap"),
                                                     testing::HasSubstr("No such file")));
}

TEST_F(PcapFile, fifo_that_nobody_reads_is_refused_at_once) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  const auto writer = PcapWriter::open(path_);
  ASSERT_FALSE(writer);
  EXPECT_THAT(writer.error().message, ::testing::HasSubstr("nobody reads the FIFO " + path_));
}

// The bound is of a whole flush: a reader that takes a little now and then does not renew it.
TEST_F(PcapFile, reader_of_a_fifo_does_not_keep_up_the_capture_ends_and_the_traffic_goes_on) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  const std::vector<std::byte> datagram = write_only(3);
  for (const bool reads : {false, true}) {
    const Descriptor reader(::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    ASSERT_TRUE(reader);
    ASSERT_GE(fcntl(reader.value(), F_SETPIPE_SZ, 4096), 0);  // so that each read lets in as little
    constexpr std::uint64_t kBoundNs = 20'000'000;
    constexpr std::size_t kFlushBytes = 1 << 20;  // a quarter of a second, for such a reader
    auto writer = PcapWriter::open(path_, kBoundNs);
    ASSERT_TRUE(writer) << writer.error().message;
    std::atomic<bool> over{!reads};
    std::thread slow([&] {
      for (char bytes[4096]; !over.load();) {
        [[maybe_unused]] const ssize_t got = ::read(reader.value(), bytes, sizeof bytes);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
    testing::internal::CaptureStderr();
    for (std::size_t i = 0; i < kFlushBytes / datagram.size(); ++i)
      (*writer)->record(1'000'000'000, {kSource, kDestination}, datagram);
    (*writer)->flush();
    EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("does not keep up")) << reads;
    over = true;
    slow.join();
  }
}

TEST_F(PcapFile, reader_of_a_fifo_leaves_no_signal_comes_and_the_traffic_goes_on) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  Descriptor reader(::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  auto writer = PcapWriter::open(path_);
  ASSERT_TRUE(writer) << writer.error().message;
  reader.close();
  testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i) {
    (*writer)->record(1'000'000'000, {kSource, kDestination}, write_only(3));
    (*writer)->flush();
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("capture " + path_ + " ends here"));
}

// A signal every 10 ms, as of a profiler, is neither room nor the end of the waiting.
TEST_F(PcapFile, signals_come_while_the_reader_pauses_nothing_of_the_capture_is_lost) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  const Descriptor reader(::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  constexpr std::uint64_t kBoundNs = 120'000'000'000;  // never reached unless the test fails
  auto writer = PcapWriter::open(path_, kBoundNs);
  ASSERT_TRUE(writer) << writer.error().message;
  static std::atomic<int> signals;
  static int pipe_fd;
  signals = 0;
  pipe_fd = reader.value();
  // The pipe is emptied by the third one.
  struct sigaction drain {};
  drain.sa_handler = [](int) {
    char bytes[4096];
    const int error = errno;
    while (++signals >= 3 && ::read(pipe_fd, bytes, sizeof bytes) > 0) {
    }
    errno = error;
  };
  sigaction(SIGALRM, &drain, nullptr);
  const itimerval often{{0, 10'000}, {0, 10'000}};
  setitimer(ITIMER_REAL, &often, nullptr);
  const std::vector<std::byte> datagram = write_only(3);
  const std::size_t more_than_it_holds = fcntl(reader.value(), F_GETPIPE_SZ) / datagram.size() + 1;
  testing::internal::CaptureStderr();
  for (std::size_t i = 0; i < more_than_it_holds; ++i)
    (*writer)->record(1'000'000'000, {kSource, kDestination}, datagram);
  (*writer)->flush();
  const itimerval never{};
  setitimer(ITIMER_REAL, &never, nullptr);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

// Wireshark 4.0 has no name for the opcode, and takes BECN for a reserved bit.
TEST_F(PcapFile, tshark_finds_opcode_and_queue_pair_of_a_congestion_notification) {
  if (std::system("command -v tshark >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "tshark is missing; install Debian's tshark to see that analysers decode notifications";
  }
  {
    roce::Headers headers;
    headers.bth.opcode = roce::Opcode::kCongestionNotification;
    headers.bth.pkey = roce::kDefaultPkey;
    headers.bth.destination_qpn = 0x1234;
    headers.bth.backward_congestion = true;
    std::vector<std::byte> datagram(roce::kBthBytes + roce::kNotificationBytes + roce::kIcrcBytes);
    ASSERT_EQ(roce::encode(headers, datagram), roce::kBthBytes);
    auto writer = PcapWriter::open(path_);
    ASSERT_TRUE(writer);
    (*writer)->record(1'000'000'000, {kSource, kDestination}, datagram);
  }
  const std::string command = "timeout 120 tshark -r " + path_ +
                              " -T fields -e infiniband.bth.opcode -e infiniband.bth.destqp"
                              " -e _ws.col.Protocol -e udp.length 2>/dev/null";
  std::FILE* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::array<char, 256> line{};
  ASSERT_NE(std::fgets(line.data(), line.size(), pipe), nullptr);
  pclose(pipe);
  EXPECT_STREQ(line.data(), "129\t0x001234\tRRoCE\t40\n");
}

TEST_F(PcapFile, tshark_decodes_it_as_rroce) {
  if (std::system("command -v tshark >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "tshark is missing; install Debian's tshark to see that analysers decode our captures";
  }
  {
    auto writer = PcapWriter::open(path_);
    ASSERT_TRUE(writer);
    (*writer)->record(1'000'000'000, {kSource, kDestination}, write_only(0));
  }
  const std::string command =
      "timeout 120 tshark -r " + path_ +
      " -T fields -e _ws.col.Protocol -e infiniband.bth.destqp -e infiniband.bth.psn -e ip.checksum.status"
      " -o ip.check_checksum:TRUE 2>/dev/null";
  std::FILE* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::array<char, 256> line{};
  ASSERT_NE(std::fgets(line.data(), line.size(), pipe), nullptr);
  pclose(pipe);
  EXPECT_STREQ(line.data(), "RRoCE\t0x001234\t77\t1\n");
}

}  // namespace pcap_test
}  // namespace gdx::softhca::wire
