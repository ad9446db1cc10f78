#include "driver-shim/softhca/rdma_cm/rdma_cm_file.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

#include "driver-shim/softhca/uverbs/real.h"

namespace gdx::softhca::uverbs {

ErrnoOr<std::shared_ptr<CmFile>> CmFile::open(int flags) {
  std::array<int, 2> ends{};
  // At once, or a program that another thread starts meanwhile would inherit our end.
  const int type = SOCK_STREAM | SOCK_CLOEXEC | ((flags & O_NONBLOCK) != 0 ? SOCK_NONBLOCK : 0);
  if (socketpair(AF_UNIX, type, 0, ends.data()) != 0) return refuse(errno);
  Descriptor own = Descriptor::keep(ends[1]);
  const int user_fd = spare_standard_descriptors(ends[0], true);
  if (user_fd >= 0 && (flags & O_CLOEXEC) == 0) fcntl(user_fd, F_SETFD, 0);
  if (own && user_fd >= 0) return std::shared_ptr<CmFile>(new CmFile(user_fd, std::move(own)));
  if (user_fd >= 0) real_close(user_fd);
  return refuse(EMFILE);
}

void CmFile::signal() {
  char byte = 0;
  if (!own_.refers()) return;
  if (!events_.empty() && !signalled_) {
    signalled_ = ::send(own_.value(), &byte, sizeof byte, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof byte;
  } else if (events_.empty() && signalled_ && identity_of(user_fd_) == user_identity_) {
    signalled_ = ::recv(user_fd_, &byte, sizeof byte, MSG_DONTWAIT) != sizeof byte;
  }
}

Errno wait_for_event(int user_fd) {
  char byte = 0;
  return ::recv(user_fd, &byte, sizeof byte, MSG_PEEK) < 0 ? errno : 0;
}

}  // namespace gdx::softhca::uverbs
