#include "base/kept_descriptor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "base/descriptor.h"
#include "tests/open_files.h"

namespace gdx {
namespace kept_descriptor_test {

int make_file() { return memfd_create("test", MFD_CLOEXEC); }
bool is_open(int number) { return fcntl(number, F_GETFD) >= 0; }

TEST(KeptDescriptor, goes_where_programs_do_not_look_and_closes_on_exec) {
  const test::OpenFileLimit limit(1024);
  const Descriptor kept = Descriptor::keep(make_file());
  EXPECT_GE(kept.value(), 512);
  EXPECT_EQ(fcntl(kept.value(), F_GETFD), FD_CLOEXEC);
  EXPECT_TRUE(is_kept(kept.value()));
  EXPECT_EQ(next_kept(3), kept.value());
}

TEST(KeptDescriptor, closed_by_its_owner_it_is_kept_no_more) {
  Descriptor kept = Descriptor::keep(make_file());
  const int number = kept.value();
  kept.close();
  EXPECT_FALSE(is_kept(number));
  EXPECT_FALSE(is_open(number));
  EXPECT_EQ(next_kept(3), -1);
}

TEST(KeptDescriptor, nothing_to_keep_stays_nothing) {
  EXPECT_FALSE(is_kept(-1));
  EXPECT_FALSE(is_kept(1 << 16));
  EXPECT_EQ(spare_standard_descriptors(3, true), 3) << "no standard one";
  errno = ENOTSOCK;
  EXPECT_EQ(keep_descriptor(-1).number, -1);
  EXPECT_EQ(errno, ENOTSOCK);
}

TEST(KeptDescriptor, another_file_at_its_number_is_neither_kept_nor_closed) {
  Descriptor kept = Descriptor::keep(make_file());
  const int number = kept.value();
  const Descriptor other(make_file());
  ASSERT_EQ(dup2(other.value(), number), number);
  EXPECT_FALSE(is_kept(number));
  kept.close();
  EXPECT_TRUE(is_open(number));
  close(number);
}

// As after a program's own close_range(2): what is kept next comes to the same number.
TEST(KeptDescriptor, another_kept_at_its_number_is_its_own_owners_alone) {
  Descriptor lost = Descriptor::keep(make_file());
  EXPECT_TRUE(lost.refers());
  syscall(SYS_close, lost.value());
  EXPECT_FALSE(lost.refers());
  const Descriptor next = Descriptor::keep(make_file());
  ASSERT_EQ(next.value(), lost.value());
  EXPECT_FALSE(lost.refers());
  lost.close();
  EXPECT_TRUE(next.refers());
  EXPECT_TRUE(is_kept(next.value()));
}

TEST(KeptDescriptor, child_may_close_what_it_inherits) {
  const Descriptor kept = Descriptor::keep(make_file());
  const pid_t child = fork();
  if (child == 0) _exit(is_kept(kept.value()) ? 1 : 0);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(KeptDescriptor, under_a_low_limit_it_goes_wherever_a_number_is_left) {
  const Descriptor taken(make_file());
  const test::OpenFileLimit limit(static_cast<rlim_t>(taken.value()) + 3);
  const Descriptor first = Descriptor::keep(make_file());
  const Descriptor second = Descriptor::keep(make_file());
  EXPECT_TRUE(first);
  EXPECT_TRUE(second);
  EXPECT_TRUE(is_kept(second.value()));
}

// Replaces a program whose standard files are closed.
TEST(KeptDescriptor, standard_numbers_stay_free) {
  const Descriptor saved(fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3));
  close(STDIN_FILENO);
  const int made = make_file();
  ASSERT_EQ(made, STDIN_FILENO);
  const Descriptor kept = Descriptor::keep(made);
  EXPECT_FALSE(is_open(STDIN_FILENO));
  const int spared = spare_standard_descriptors(make_file(), false);
  EXPECT_GT(spared, STDERR_FILENO);
  EXPECT_EQ(fcntl(spared, F_GETFD), 0);
  EXPECT_FALSE(is_open(STDIN_FILENO));
  {
    const test::OpenFileLimit none(3);
    EXPECT_EQ(keep_descriptor(make_file()).number, -1);
    EXPECT_EQ(errno, EMFILE);
    EXPECT_FALSE(is_open(STDIN_FILENO));
  }
  close(spared);
  dup2(saved.value(), STDIN_FILENO);
}

}  // namespace kept_descriptor_test
}  // namespace gdx
