#include "base/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>

namespace gdx {
namespace {

int lost_errno = 0;  // of the first failure of stdout

void note_failure() {
  if (lost_errno == 0) lost_errno = errno != 0 ? errno : EIO;
}

// Opens them in the wrong direction, so that writes fail as on a closed descriptor.
void hold_closed_descriptors() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(descriptor, F_GETFD) >= 0 || errno != EBADF) continue;
    const int way = descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY;
    [[maybe_unused]] const int held = open("/dev/null", way | O_CLOEXEC);
  }
}

int run_guarded(std::string_view program, const std::function<int()>& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    print_error("{}: no memory is left: raise ulimit -v, or end other programs\n", program);
  } catch (const std::exception& error) {
    print_error("{}: unexpected failure: {}\n", program, error.what());
  }
  return 1;
}

}  // namespace

void write_output(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) note_failure();
}

void write_error(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

Progress::Progress() : terminal_(isatty(STDERR_FILENO) == 1) {}
Progress::~Progress() { show(""); }

bool flush_output() {
  if (std::fflush(stdout) != 0) note_failure();
  return lost_errno == 0;
}

int run_program(std::string_view program, const std::function<int()>& body) {
  hold_closed_descriptors();
  const int status = run_guarded(program, body);
  flush_output();
  if (lost_errno == 0) return status;
  print_error("{}: what it printed was lost: {}; give it another place than this stdout\n", program,
              std::strerror(lost_errno));
  return status == 0 ? 1 : status;
}

}  // namespace gdx
