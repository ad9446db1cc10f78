#include "host/bootstrap/secret.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/page_size.h"
#include "base/process_stat.h"
#include "proto/bootstrap/messages.h"

namespace gdx::bootstrap {
namespace {

constexpr mode_t kOthers = S_IRWXG | S_IRWXO;
constexpr int kMostSteps = 64;  // up to the launcher
constexpr int kSeals = F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL;

tl::unexpected<Error> refuse(std::string why) { return fail(Status::kInvalidArgument, std::move(why)); }

struct KdfDelete {
  void operator()(EVP_KDF* kdf) const { EVP_KDF_free(kdf); }
  void operator()(EVP_KDF_CTX* context) const { EVP_KDF_CTX_free(context); }
};

// Takes away a const that the library honours, because its type of parameters has none.
OSSL_PARAM octets(const char* name, std::span<const std::byte> bytes) {
  return OSSL_PARAM_construct_octet_string(name, const_cast<std::byte*>(bytes.data()), bytes.size());
}

// Returns whether share() has made the file. Another file that has got the number is taken for no secret,
// because only a file without a name has seals.
bool holds_secret(int descriptor) {
  struct stat found {};
  return fcntl(descriptor, F_GET_SEALS) == kSeals && fstat(descriptor, &found) == 0 &&
         found.st_size == static_cast<off_t>(kSecretBytes);
}

}  // namespace

void wipe(std::span<std::byte> bytes) { OPENSSL_cleanse(bytes.data(), bytes.size()); }

Result<std::shared_ptr<Secret>> Secret::reserve() {
  const std::size_t length_bytes = page_bytes();
  void* const page = mmap(nullptr, length_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return fail(Status::kNoMemory, "no page for the job's secret: free some memory");
  auto secret = std::shared_ptr<Secret>(new Secret);
  secret->page_ = MappedPages(static_cast<std::byte*>(page), Unmap{length_bytes});
  // Best effort: a limit of locked memory may be 0, and then the page may be swapped out.
  static_cast<void>(mlock(page, length_bytes));
  if (madvise(page, length_bytes, MADV_DONTDUMP) != 0)
    return fail(Status::kSystem,
                fmt::format("the job's secret cannot be kept out of core files: {}", std::strerror(errno)));
  return secret;
}

Result<Secret::Ptr> Secret::make() {
  auto secret = GDX_TRY(reserve());
  if (getrandom(secret->page_.get(), kSecretBytes, 0) != static_cast<ssize_t>(kSecretBytes))
    return fail(Status::kSystem, fmt::format("no random bytes to be had: {}", std::strerror(errno)));
  return Ptr(std::move(secret));
}

Result<Secret::Ptr> Secret::read(int descriptor, const std::string& name) {
  auto secret = GDX_TRY(reserve());
  if (pread(descriptor, secret->page_.get(), kSecretBytes, 0) == static_cast<ssize_t>(kSecretBytes))
    return Ptr(std::move(secret));
  return refuse(fmt::format("{} cannot be read: {}", name, std::strerror(errno)));
}

Result<Secret::Ptr> Secret::from_file(const std::string& path) {
  // Opens without waiting, because a FIFO may have no writer.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat found {};
  if (!file || fstat(file.value(), &found) != 0)
    return refuse(
        fmt::format("the job's secret cannot be read from {}: {}; make it: (umask 077; head -c {} "
                    "/dev/urandom >{})",
                    path, std::strerror(errno), kSecretBytes, path));
  if (!S_ISREG(found.st_mode)) return refuse(fmt::format("the job's secret {} is no regular file", path));
  if (found.st_uid != geteuid())
    return refuse(
        fmt::format("the job's secret {} is user {}'s, and this is user {}'s: use a file of your own", path,
                    found.st_uid, geteuid()));
  if ((found.st_mode & kOthers) != 0)
    return refuse(
        fmt::format("the job's secret {} is open to others (mode {:03o}): make a new one, because "
                    "it may have been read: (umask 077; head -c {} /dev/urandom >NEW)",
                    path, found.st_mode & 0777, kSecretBytes));
  if (found.st_size != static_cast<off_t>(kSecretBytes))
    return refuse(fmt::format("the job's secret {} has {} bytes: it must be {} random ones", path,
                              found.st_size, kSecretBytes));
  return read(file.value(), fmt::format("the job's secret {}", path));
}

Result<Secret::Ptr> Secret::from_descriptor(int descriptor) {
  if (holds_secret(descriptor))
    return read(descriptor, fmt::format("the job's secret in descriptor {}", descriptor));
  pid_t above = getppid();
  for (int steps = 0; above > 0 && steps < kMostSteps; above = stat_of(above).parent, ++steps) {
    const std::string path = fmt::format("/proc/{}/fd/{}", above, descriptor);
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    if (file && holds_secret(file.value())) return read(file.value(), path);
  }
  return refuse(
      fmt::format("descriptor {} does not hold the job's secret, here or in a process above: programs "
                  "between gdx run and this rank have closed it; give the secret by GDX_SECRET_FILE",
                  descriptor));
}

std::string Secret::text() const {
  std::string digits;
  for (const std::byte byte : bytes()) fmt::format_to(std::back_inserter(digits), "{:02x}", byte);
  return digits;
}

Result<Secret::Ptr> Secret::from_text(const std::string& text) {
  auto secret = GDX_TRY(reserve());
  const char* at = text.data();
  bool whole = text.size() == 2 * kSecretBytes;
  for (std::size_t i = 0; i < kSecretBytes && whole; ++i, at += 2) {
    std::uint8_t byte = 0;
    whole = std::from_chars(at, at + 2, byte, 16).ptr == at + 2;
    secret->page_.get()[i] = std::byte{byte};
  }
  if (whole) return Ptr(std::move(secret));
  return fail(Status::kVersionMismatch,
              "a launcher has carried no secret of a job: start one gdx on all ranks");
}

Secret::~Secret() {
  if (page_) wipe(bytes());
}

Result<Descriptor> Secret::share() const {
  Descriptor file = Descriptor::keep(memfd_create("gdx job secret", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file && write(file.value(), page_.get(), kSecretBytes) == static_cast<ssize_t>(kSecretBytes) &&
      fcntl(file.value(), F_ADD_SEALS, kSeals) == 0)
    return file;
  return fail(Status::kSystem, fmt::format("the job's secret cannot be handed on: {}", std::strerror(errno)));
}

Result<ChannelKey> Secret::key_of(const ChannelIdentity& identity) const {
  const std::unique_ptr<EVP_KDF, KdfDelete> kdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr));
  const std::unique_ptr<EVP_KDF_CTX, KdfDelete> context(EVP_KDF_CTX_new(kdf.get()));
  char digest[] = "SHA384";
  const auto salt = std::as_bytes(std::span(kChannelSalt)).first(sizeof kChannelSalt - 1);
  const OSSL_PARAM parameters[] = {OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
                                   octets(OSSL_KDF_PARAM_KEY, bytes()), octets(OSSL_KDF_PARAM_SALT, salt),
                                   octets(OSSL_KDF_PARAM_INFO, std::as_bytes(std::span(&identity, 1))),
                                   OSSL_PARAM_construct_end()};
  ChannelKey key{};
  if (context != nullptr && EVP_KDF_derive(context.get(), reinterpret_cast<unsigned char*>(key.data()),
                                           key.size(), parameters) == 1)
    return key;
  return fail(Status::kSystem, "OpenSSL has no HKDF with SHA-384: look at its configuration (openssl.cnf)");
}

}  // namespace gdx::bootstrap
