// The inventory that a process writes, as another process reads it: whole, torn, forged, or of the dead.
#include "driver-shim/softhca/uverbs/inventory_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <set>
#include <string>

namespace gdx::softhca::uverbs {
namespace inventory_file_test {

Resource region(std::uint32_t number) {
  Resource made;
  made.kind = ResourceKind::kMr;
  made.number = number;
  made.context = 3;
  made.pd = 5;
  made.extent = std::uint64_t{1} << 40 | number;
  made.iova = 0x7f00'0000'1000 + number;
  return made;
}

Resource queue_pair(std::uint32_t number) {
  Resource made;
  made.kind = ResourceKind::kQp;
  made.number = number;
  made.users = 7;
  made.type = QpType::kUc;
  made.attributes.state = QpState::kSqe;
  made.attributes.port = 1;
  made.attributes.remote_qpn = 0xabcdef;
  made.attributes.receive_psn = 0x123456;
  made.attributes.send_psn = 0x654321;
  return made;
}

// All that a reader is told of one.
std::string text_of(const PlacedResource& placed) {
  const auto& [hca, one] = placed;
  std::string text = "hca " + std::to_string(hca);
  for (const std::uint64_t field :
       {std::uint64_t{static_cast<std::uint8_t>(one.kind)}, std::uint64_t{one.number},
        std::uint64_t{one.context}, std::uint64_t{one.pd}, std::uint64_t{one.users}, one.extent, one.iova,
        static_cast<std::uint64_t>(one.type), std::uint64_t{static_cast<std::uint8_t>(one.attributes.state)},
        std::uint64_t{one.attributes.port}, std::uint64_t{one.attributes.remote_qpn},
        std::uint64_t{one.attributes.receive_psn}, std::uint64_t{one.attributes.send_psn}})
    text += ' ' + std::to_string(field);
  return text;
}

std::multiset<std::string> texts_of(const std::vector<PlacedResource>& resources) {
  std::multiset<std::string> texts;
  for (const PlacedResource& resource : resources) texts.insert(text_of(resource));
  return texts;
}

class InventoryFiles : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "gdx-inventory-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override {
    kill_writer();
    std::error_code error;
    std::filesystem::remove_all(root_, error);
  }

  // A process that makes the file by `work`, and then lives on.
  void start_writer(const std::function<void(InventoryFile&)>& work) {
    std::array<int, 2> done{};
    ASSERT_EQ(pipe(done.data()), 0);
    writer_ = fork();
    ASSERT_GE(writer_, 0);
    if (writer_ == 0) {
      InventoryFile file(root_);
      work(file);
      const char byte = 1;
      if (write(done[1], &byte, 1) != 1) _exit(1);
      for (;;) pause();
    }
    close(done[1]);
    char byte = 0;
    EXPECT_EQ(read(done[0], &byte, 1), 1) << "the writer ended early";
    close(done[0]);
  }
  void kill_writer() {
    if (writer_ > 0) {
      kill(writer_, SIGKILL);
      waitpid(writer_, nullptr, 0);
    }
    writer_ = -1;
  }
  std::string path() const { return root_ + "/.inventory"; }
  std::string content() const {
    std::ifstream file(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void replace(const std::string& bytes) const {
    std::filesystem::remove(
        path());  // some file systems wait for the disk where one is cut and written again
    std::ofstream file(path(), std::ios::binary);
    file << bytes;
  }

  std::string root_;
  pid_t writer_ = -1;
};

TEST_F(InventoryFiles, another_process_reads_every_field_of_every_object) {
  start_writer([](InventoryFile& file) {
    std::uint32_t record = file.take();
    file.write(record, 0, region(1));
    record = file.take();
    file.write(record, 15, queue_pair(2));
  });
  const auto found = read_inventory(root_);
  EXPECT_EQ(texts_of(found), texts_of({{0, region(1)}, {15, queue_pair(2)}}));
  for (const auto& [hca, resource] : found) EXPECT_EQ(resource.process, static_cast<std::uint32_t>(writer_));
}

TEST_F(InventoryFiles, objects_end_with_their_records_which_are_used_again) {
  start_writer([](InventoryFile& file) {
    static std::deque<InventoryRecord> records;  // for the writer's life
    for (std::uint32_t i = 0; i < 1000; ++i) records.emplace_back().show(file, 0, region(i));
    while (records.size() > 1) records.pop_back();
    records.front().show(file, 1, queue_pair(9));
    for (std::uint32_t i = 0; i < 500; ++i) records.emplace_back().show(file, 0, region(2000 + i));
  });
  std::vector<PlacedResource> expected{{1, queue_pair(9)}};
  for (std::uint32_t i = 0; i < 500; ++i) expected.emplace_back(0, region(2000 + i));
  EXPECT_EQ(texts_of(read_inventory(root_)), texts_of(expected));
  EXPECT_LE(content().size(), 4096 * kRecordBytes) << "1000 records at most were in use";
}

TEST_F(InventoryFiles, process_that_ends_is_not_shown) {
  start_writer([](InventoryFile& file) { file.write(file.take(), 0, region(1)); });
  const std::string left = content();
  ASSERT_EQ(read_inventory(root_).size(), 1u);
  kill(writer_, SIGKILL);
  siginfo_t ended{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(writer_), &ended, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(read_inventory(root_).empty()) << "a process that nobody has waited for";
  kill_writer();
  EXPECT_EQ(content(), left);
  EXPECT_TRUE(read_inventory(root_).empty());
}

TEST_F(InventoryFiles, process_is_known_by_its_start_and_is_not_this_one) {
  start_writer([](InventoryFile& file) { file.write(file.take(), 0, region(1)); });
  std::string bytes = content();
  ++bytes[8];  // the start
  replace(bytes);
  EXPECT_TRUE(read_inventory(root_).empty()) << "the number of a process, used again";
  InventoryFile own(root_ + "/");
  EXPECT_EQ(own.take(), 0u) << "a file that is there is nobody's to write";
  kill_writer();
  std::filesystem::remove(path());
  InventoryFile again(root_);
  again.write(again.take(), 0, region(1));
  EXPECT_TRUE(read_inventory(root_).empty()) << "a process reads its own objects where they are";
}

TEST_F(InventoryFiles, damaged_files_show_no_false_object) {
  start_writer([](InventoryFile& file) {
    for (std::uint32_t i = 1; i < 8; ++i) file.write(file.take(), 0, i % 2 == 0 ? region(i) : queue_pair(i));
  });
  const std::string whole = content();
  const auto true_ones = texts_of(read_inventory(root_));
  ASSERT_EQ(true_ones.size(), 7u);
  const auto check = [&](const std::string& bytes, std::size_t at) {
    replace(bytes);
    const auto found = texts_of(read_inventory(root_));
    ASSERT_TRUE(std::ranges::includes(true_ones, found)) << "byte " << at;
  };
  for (std::size_t at = 0; at < 8 * kRecordBytes; ++at) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x11);
    ASSERT_NO_FATAL_FAILURE(check(bytes, at));
    ASSERT_NO_FATAL_FAILURE(check(whole.substr(0, at), at));
  }
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    std::string bytes = whole.substr(0, kRecordBytes);
    while (bytes.size() < 100 * kRecordBytes) bytes.push_back(static_cast<char>(random()));
    ASSERT_NO_FATAL_FAILURE(check(bytes, 0));
  }
}

TEST_F(InventoryFiles, what_is_no_file_is_not_read) {
  EXPECT_TRUE(read_inventory(root_).empty());
  ASSERT_EQ(mkfifo(path().c_str(), 0600), 0);
  EXPECT_TRUE(read_inventory(root_).empty());
  std::filesystem::remove(path());
  start_writer([](InventoryFile& file) { file.write(file.take(), 0, region(1)); });
  std::filesystem::rename(path(), root_ + "/other");
  std::filesystem::create_symlink(root_ + "/other", path());
  EXPECT_TRUE(read_inventory(root_).empty()) << "a link may lead anywhere";
}

TEST_F(InventoryFiles, objects_beyond_the_last_record_are_left_out) {
  start_writer([](InventoryFile& file) {
    for (std::uint32_t i = 1; i < kMaxRecords; ++i) {
      if (const std::uint32_t record = file.take()) file.write(record, 0, region(i));
    }
    if (file.take() != 0 || file.take() != 0) _exit(1);
    file.free(7);
    if (file.take() != 7) _exit(1);
  });
  EXPECT_EQ(read_inventory(root_).size(), kMaxRecords - 2);
}

// As on a full disk: the file grows by blocks that it has, or not at all.
TEST_F(InventoryFiles, file_that_cannot_grow_shows_what_it_has_room_for) {
  start_writer([](InventoryFile& file) {
    const rlimit few{.rlim_cur = 4096, .rlim_max = 4096};
    if (signal(SIGXFSZ, SIG_IGN) == SIG_ERR || setrlimit(RLIMIT_FSIZE, &few) != 0) _exit(1);
    for (std::uint32_t i = 0; i < 100; ++i) {
      if (const std::uint32_t record = file.take()) file.write(record, 0, region(i));
    }
  });
  EXPECT_EQ(read_inventory(root_).size(), 63u);
}

TEST_F(InventoryFiles, folder_that_is_gone_is_no_error) {
  InventoryFile file(root_ + "/none");
  EXPECT_EQ(file.take(), 0u);
  InventoryRecord record;
  record.show(file, 0, region(1));
}

}  // namespace inventory_file_test
}  // namespace gdx::softhca::uverbs
