#include "host/bootstrap/admission.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <limits>
#include <optional>
#include <utility>

#include "base/environment.h"
#include "host/bootstrap/socket.h"

namespace gdx::bootstrap {
namespace {

// The user's settings, from variables.
struct Wishes {
  const char* file = nullptr;
  bool insecure = false;
};

Result<Wishes> read_wishes() {
  Wishes wishes;
  wishes.insecure = GDX_TRY(number_from_environment(kInsecureVariable, 0, 1)).value_or(0) == 1;
  wishes.file = std::getenv(kSecretFileVariable);
  if (!wishes.insecure || wishes.file == nullptr) return wishes;
  return fail(Status::kInvalidArgument, fmt::format("{} = 1 and {} contradict each other: unset one of them",
                                                    kInsecureVariable, kSecretFileVariable));
}

std::string by_secret(const std::string& readers) {
  return fmt::format("by the job's secret, over TLS 1.3; {}", readers);
}

}  // namespace

Result<Admission> choose_admission(const std::string& root, const Secret::Ptr& given,
                                   const std::string& given_by) {
  const Wishes wishes = GDX_TRY(read_wishes());
  if (wishes.insecure)
    return Admission{nullptr, fmt::format("by nothing ({} = 1): whoever reaches their sockets can be a rank, "
                                          "read and change what they exchange",
                                          kInsecureVariable)};
  if (wishes.file != nullptr)
    return Admission{GDX_TRY(Secret::from_file(wishes.file)),
                     by_secret(fmt::format("user {} and root can read its file {}, and whoever serves that "
                                           "file system, if it is another host's",
                                           geteuid(), wishes.file))};
  if (given) return Admission{given, by_secret(given_by)};
  const auto descriptor =
      GDX_TRY(number_from_environment(kSecretDescriptorVariable, 0, std::numeric_limits<int>::max()));
  if (descriptor)
    return Admission{
        GDX_TRY(Secret::from_descriptor(static_cast<int>(*descriptor))),
        by_secret(fmt::format("user {} and root can read it, in descriptors of gdx run's ranks", geteuid()))};
  if (is_local(root))
    return Admission{nullptr, fmt::format("by the user at the other end of a local socket: user {}'s "
                                          "processes, and root's under that user's id",
                                          geteuid())};
  return fail(
      Status::kUnsupported,
      fmt::format("ranks that meet over TCP, at {}, need a secret: start them by gdx run; or make a "
                  "file, (umask 077; head -c {} /dev/urandom >FILE), and give it to each by {}; or let "
                  "GDX_ROOT be unix:NAME, if all are on this host; or set {}=1 where nobody else "
                  "reaches them",
                  root, kSecretBytes, kSecretFileVariable, kInsecureVariable));
}

Result<Secret::Ptr> secret_to_tell() {
  const Wishes wishes = GDX_TRY(read_wishes());
  return wishes.insecure || wishes.file != nullptr ? Secret::Ptr{} : Secret::make();
}

Result<Secret::Ptr> secret_to_hand_on() {
  const Wishes wishes = GDX_TRY(read_wishes());
  if (wishes.insecure) return Secret::Ptr{};
  return wishes.file != nullptr ? Secret::from_file(wishes.file) : Secret::make();
}

}  // namespace gdx::bootstrap
