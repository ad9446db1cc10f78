#include "host/bootstrap/channel_tls.h"

#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace gdx::bootstrap {
namespace {

constexpr char kCipherSuite[] = "TLS_AES_256_GCM_SHA384";
constexpr unsigned char kCipherSuiteNumber[] = {0x13, 0x02};  // RFC 8446, appendix B.4

bool must_wait(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

const std::byte* as_bytes(const void* at) { return static_cast<const std::byte*>(at); }

}  // namespace

// Functions that OpenSSL calls. Those of sockets are none of its own, because its sends raise SIGPIPE.
struct Callbacks {
  static ChannelTls& channel(const SSL* tls) { return *static_cast<ChannelTls*>(SSL_get_app_data(tls)); }

  static int send(BIO* bio, const char* bytes, int length) {
    BIO_clear_retry_flags(bio);
    const auto& self = *static_cast<ChannelTls*>(BIO_get_data(bio));
    const ssize_t sent = ::send(self.socket_, bytes, static_cast<std::size_t>(length), MSG_NOSIGNAL);
    if (sent < 0 && must_wait(errno)) BIO_set_retry_write(bio);
    return static_cast<int>(sent);
  }

  static int receive(BIO* bio, char* bytes, int length) {
    BIO_clear_retry_flags(bio);
    auto& self = *static_cast<ChannelTls*>(BIO_get_data(bio));
    const ssize_t got = ::recv(self.socket_, bytes, static_cast<std::size_t>(length), 0);
    if (got < 0 && must_wait(errno)) BIO_set_retry_read(bio);
    for (ssize_t i = 0; i < got && self.first_bytes_ < self.first_.size(); ++i)
      self.first_[self.first_bytes_++] = as_bytes(bytes)[i];
    return static_cast<int>(got);
  }

  static long control(BIO* /*bio*/, int command, long /*value*/, void* /*at*/) {
    return command == BIO_CTRL_FLUSH ? 1 : 0;
  }

  // Returns a session that stands for the key of `identity`; null without memory.
  static SSL_SESSION* session_of(SSL* tls, const Secret& secret, const ChannelIdentity& identity) {
    auto key = secret.key_of(identity);
    const SSL_CIPHER* const suite = SSL_CIPHER_find(tls, kCipherSuiteNumber);
    SSL_SESSION* session = SSL_SESSION_new();
    const bool made = key && suite != nullptr && session != nullptr &&
                      SSL_SESSION_set1_master_key(session, reinterpret_cast<unsigned char*>(key->data()),
                                                  key->size()) == 1 &&
                      SSL_SESSION_set_cipher(session, suite) == 1 &&
                      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1;
    if (key) wipe(*key);
    if (made) return session;
    SSL_SESSION_free(session);
    return nullptr;
  }

  static int own_key(SSL* tls, const EVP_MD* /*digest*/, const unsigned char** identity, std::size_t* length,
                     SSL_SESSION** session) {
    ChannelTls& self = channel(tls);
    *session = session_of(tls, *self.secret_, self.identity_);
    *identity = reinterpret_cast<const unsigned char*>(&self.identity_);
    *length = sizeof self.identity_;
    return *session != nullptr ? 1 : 0;
  }

  static int key_of_peer(SSL* tls, const unsigned char* identity, std::size_t length, SSL_SESSION** session) {
    ChannelTls& self = channel(tls);
    *session = nullptr;
    ChannelIdentity said;
    if (length != sizeof said) return 1;
    std::memcpy(&said, identity, sizeof said);
    if (said.magic != kIdentityMagic) return 1;
    if (said.version != kVersion) {
      self.refusal_ =
          fmt::format("speaks bootstrap protocol version {}, this side {}: run the same gdx everywhere",
                      std::uint16_t{said.version}, kVersion);
    } else if (said.first_frame != self.identity_.first_frame || said.team != self.identity_.team) {
      self.refusal_ = "is of another team: each team's ranks meet by their own addresses";
    } else if (said.to != self.place_.rank) {
      self.refusal_ =
          fmt::format("came to rank {}, and this is rank {}", std::uint32_t{said.to}, self.place_.rank);
    } else {
      self.peer_ = said.from;
      *session = session_of(tls, *self.secret_, said);
    }
    return 1;
  }
};

namespace {

struct ContextDelete {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};

// Returns settings of all channels; null where OpenSSL does not offer them. It holds no key.
SSL_CTX* make_context() {
  std::unique_ptr<SSL_CTX, ContextDelete> context(SSL_CTX_new(TLS_method()));
  if (context == nullptr || SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_max_proto_version(context.get(), TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(context.get(), kCipherSuite) != 1 ||
      SSL_CTX_set_num_tickets(context.get(), 0) != 1 || SSL_CTX_set_max_early_data(context.get(), 0) != 1)
    return nullptr;
  SSL_CTX_set_options(context.get(), SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_clear_options(context.get(), SSL_OP_ALLOW_NO_DHE_KEX);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                      SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_psk_use_session_callback(context.get(), Callbacks::own_key);
  SSL_CTX_set_psk_find_session_callback(context.get(), Callbacks::key_of_peer);
  return context.release();
}

BIO_METHOD* make_method() {
  BIO_METHOD* const method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "gdx socket");
  if (method == nullptr) return nullptr;
  BIO_meth_set_write(method, Callbacks::send);
  BIO_meth_set_read(method, Callbacks::receive);
  BIO_meth_set_ctrl(method, Callbacks::control);
  return method;
}

}  // namespace

void ChannelTls::Delete::operator()(ssl_st* tls) const { SSL_free(tls); }

ChannelTls::~ChannelTls() = default;

Result<std::unique_ptr<ChannelTls>> ChannelTls::dial(Secret::Ptr secret, const ChannelPlace& place,
                                                     std::uint32_t to, const Descriptor& socket) {
  std::unique_ptr<ChannelTls> channel(new ChannelTls(std::move(secret), place, to));
  channel->identity_.from = place.rank;
  channel->identity_.to = to;
  GDX_TRY(channel->begin(true, socket));
  return channel;
}

Result<std::unique_ptr<ChannelTls>> ChannelTls::answer(Secret::Ptr secret, const ChannelPlace& place,
                                                       const Descriptor& socket) {
  std::unique_ptr<ChannelTls> channel(new ChannelTls(std::move(secret), place, 0));
  GDX_TRY(channel->begin(false, socket));
  return channel;
}

Result<void> ChannelTls::begin(bool dials, const Descriptor& socket) {
  static SSL_CTX* const context = make_context();
  static BIO_METHOD* const method = make_method();
  identity_.magic = kIdentityMagic;
  identity_.version = kVersion;
  identity_.first_frame = static_cast<std::uint16_t>(place_.first_frame);
  identity_.team = place_.team;
  socket_ = socket.value();
  if (context == nullptr || method == nullptr)
    return fail(Status::kSystem, fmt::format("OpenSSL offers no TLS 1.3 with {}: look at its configuration "
                                             "(openssl.cnf)",
                                             kCipherSuite));
  tls_.reset(SSL_new(context));
  BIO* const bio = tls_ != nullptr ? BIO_new(method) : nullptr;
  if (bio == nullptr) return fail(Status::kNoMemory, "no memory for an encrypted connection");
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(tls_.get(), bio, bio);
  SSL_set_app_data(tls_.get(), this);
  dials ? SSL_set_connect_state(tls_.get()) : SSL_set_accept_state(tls_.get());
  // Refuses every certificate, because there is no authority that could vouch for one. So a listener without
  // the key cannot pass by offering a certificate.
  if (dials) SSL_set_verify(tls_.get(), SSL_VERIFY_PEER, nullptr);
  return {};
}

bool ChannelTls::is_open() const {
  return SSL_is_init_finished(tls_.get()) == 1 && SSL_session_reused(tls_.get()) == 1;
}

bool ChannelTls::is_likely() const { return SSL_session_reused(tls_.get()) == 1; }

Result<std::size_t> ChannelTls::read(std::span<std::byte> bytes) {
  std::size_t got = 0;
  ERR_clear_error();
  const int done = SSL_read_ex(tls_.get(), bytes.data(), bytes.size(), &got);
  return passed(done, got);
}

Result<std::size_t> ChannelTls::peek(std::span<std::byte> bytes) {
  std::size_t got = 0;
  ERR_clear_error();
  const int done = SSL_peek_ex(tls_.get(), bytes.data(), bytes.size(), &got);
  return passed(done, got);
}

Result<std::size_t> ChannelTls::write(std::span<const std::byte> bytes) {
  std::size_t sent = 0;
  ERR_clear_error();
  const int done = SSL_write_ex(tls_.get(), bytes.data(), bytes.size(), &sent);
  return passed(done, sent);
}

// Returns the result of a call of the library, which tells the reason of an error only once.
Result<std::size_t> ChannelTls::passed(int done, std::size_t bytes) {
  if (broken_) return tl::unexpected(*broken_);
  if (done == 1 && is_open()) return bytes;
  const int state = SSL_get_error(tls_.get(), done);
  awaits_room_ = state == SSL_ERROR_WANT_WRITE;
  if (state == SSL_ERROR_WANT_READ || state == SSL_ERROR_WANT_WRITE) return std::size_t{0};
  broken_ = failure(done);
  ERR_clear_error();
  return tl::unexpected(*broken_);
}

Error ChannelTls::failure(int done) const {
  if (done == 1) return {Status::kInvalidArgument, "does not use the key of the job's secret"};
  const unsigned long code = ERR_peek_error();
  if (code == 0 || ERR_GET_REASON(code) == SSL_R_UNEXPECTED_EOF_WHILE_READING || ERR_SYSTEM_ERROR(code))
    return {Status::kPeerGone, "closed its connection"};
  constexpr Be32 kFrame{kMagic};
  const bool speaks_frames = std::memcmp(first_.data(), &kFrame, sizeof kFrame) == 0;
  if (speaks_frames)
    return {Status::kUnsupported, "has no secret, and this rank has one: give all ranks of the job the same"};
  if (!refusal_.empty()) return {Status::kInvalidArgument, refusal_};
  switch (ERR_GET_REASON(code)) {
    case SSL_R_BINDER_DOES_NOT_VERIFY:
      return {
          Status::kInvalidArgument,
          fmt::format("came as rank {} and has another secret: give all ranks of the job the same", peer_)};
    case SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER:
    case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:  // the alert of OpenSSL 3.5
      return {Status::kInvalidArgument,
              "does not know this rank's secret: give all ranks of the job the same, and the same root"};
    default: break;
  }
  const char* const reason = ERR_reason_error_string(code);
  return {Status::kInvalidArgument, fmt::format("does not show that it has the job's secret ({})",
                                                reason != nullptr ? reason : "no reason")};
}

}  // namespace gdx::bootstrap
