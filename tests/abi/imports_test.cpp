// A second context over one open of the device node, and the objects that it imports.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "tests/abi/loopback.h"

namespace gdx::abi_tests {
namespace imports_test {

class Imports : public Loopback {
 protected:
  Context import() const {
    const int fd = fcntl(context_->cmd_fd, F_DUPFD_CLOEXEC, 0);
    EXPECT_GE(fd, 0);
    return Context(ibv_import_device(fd));
  }
};

TEST_F(Imports, region_and_domain_imported_are_those_of_the_first_context) {
  const Context second = import();
  ASSERT_NE(second, nullptr) << errno;
  ibv_pd* const pd = ibv_import_pd(second.get(), pd_->handle);
  ASSERT_NE(pd, nullptr);
  ibv_mr* const mr = ibv_import_mr(pd, mr_->handle);
  ASSERT_NE(mr, nullptr);
  EXPECT_EQ(mr->lkey, mr_->lkey);
  EXPECT_EQ(mr->rkey, mr_->rkey);
  EXPECT_EQ(mr->length, memory_.size());
  EXPECT_EQ(ibv_import_mr(pd, pd_->handle), nullptr) << "a domain is no region";
  EXPECT_EQ(ibv_import_pd(second.get(), 12345), nullptr);
  ibv_unimport_mr(mr);
  ibv_unimport_pd(pd);
}

TEST_F(Imports, objects_live_as_long_as_any_descriptor_of_their_open) {
  const Context first = open_device();
  ASSERT_NE(first, nullptr);
  const Pd pd(ibv_alloc_pd(first.get()));
  ASSERT_NE(pd, nullptr);
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  const int copy = dup(first->cmd_fd);
  ASSERT_EQ(close(first->cmd_fd), 0);
  ASSERT_EQ(dup2(null, first->cmd_fd), first->cmd_fd);  // so that the number is nobody else's
  const Context second(ibv_import_device(copy));
  ASSERT_NE(second, nullptr) << errno;
  ibv_pd* const imported = ibv_import_pd(second.get(), pd->handle);
  EXPECT_NE(imported, nullptr);
  if (imported != nullptr) ibv_unimport_pd(imported);
  // A duplicate that nobody has looked at yet: the domain goes by it, and the first context.
  ASSERT_EQ(dup2(second->cmd_fd, first->cmd_fd), first->cmd_fd);
  EXPECT_EQ(close(null), 0);
}

TEST_F(Imports, another_memory_file_is_no_device) {
  const int other = memfd_create("other", MFD_CLOEXEC);
  ASSERT_GE(other, 0);
  EXPECT_EQ(ibv_import_device(other), nullptr);
  EXPECT_EQ(close(other), 0);
}

}  // namespace imports_test
}  // namespace gdx::abi_tests
