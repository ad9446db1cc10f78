// Meeting of the two ends of a link: the one that accepts makes an invitation, which the program carries to
// the one that connects. Their cards travel on a TCP connection of their own. Nothing here waits.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>

#include "base/result.h"
#include "host/bootstrap/reception.h"
#include "host/messaging/keeper.h"
#include "host/messaging/peer.h"
#include "host/poster/libfabric_port.h"

namespace gdx::messaging {

// Way out of this process.
struct Door {
  LibfabricOptions port;
  std::string host;  // numeric address at which invitations lead to this process
};

inline constexpr std::uint32_t kInvitationMagic = 0x6764786d;  // "gdxm"
inline constexpr std::uint16_t kInvitationVersion = 1;

// Words that lead to an end that accepts. Whoever reads them can connect in its place, unless the job has a
// secret of its own.
struct Invitation {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t has_secret;  // else the job's own, or none
  std::uint64_t number;      // of the invitation, random
  std::array<char, 64> address;
  std::array<std::uint8_t, bootstrap::kSecretBytes> secret;
};
static_assert(sizeof(Invitation) == 112 && std::is_trivially_copyable_v<Invitation>);

// Readers of an invitation, for a line about the way in which the ends recognise each other.
inline constexpr char kInvitationReaders[] =
    "the program has carried it: whoever reads its words between hosts can read it";

// Listening socket of an end that accepts, and the words that lead to it.
struct Inviting {
  Descriptor listener;
  Invitation invitation;
  bootstrap::Secret::Ptr told;  // the secret of the invitation; null: the job's own, or none
};
// Errors: those of listen_on and secret_to_tell.
[[nodiscard]] Result<Inviting> invite(const Door& door);

struct Invited {
  std::string address;
  bootstrap::Secret::Ptr told;
};
// Errors: kVersionMismatch for words of no invitation, or of another version.
[[nodiscard]] Result<Invited> read_invitation(const Invitation& invitation);

// End that accepts. Threads: any. Handshakes have a bound, so they go on in its turns, too.
class Host final : public Kept {
 public:
  // Errors: those of choose_admission and listen_on.
  [[nodiscard]] static Result<std::unique_ptr<Host>> open(std::shared_ptr<Keeper> keeper, const Door& door);
  [[nodiscard]] const Invitation& invitation() const { return invitation_; }
  // Returns the next peer that has come; null while there is none. Errors: the listener's; those of opening
  // a port, and of Executor::connect, of which the peer is told, too.
  [[nodiscard]] Result<std::unique_ptr<Peer>> accept();
  ~Host() override;
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  void take_turn() override;

 private:
  Host(std::shared_ptr<Keeper> keeper, Door door, const Invitation& invitation,
       bootstrap::Reception reception);
  [[nodiscard]] Result<void> receive();
  [[nodiscard]] Result<std::unique_ptr<Peer>> answer(bootstrap::Reception::Arrival arrival);

  std::shared_ptr<Keeper> keeper_;
  std::mutex mutex_;
  Door door_;
  Invitation invitation_;
  bootstrap::Reception reception_;
  std::deque<bootstrap::Reception::Arrival> arrivals_;
};

// End that connects. Threads: any.
class Guest final : public Kept {
 public:
  // Errors: kVersionMismatch for words that are no invitation; those of choose_admission, of connecting and
  // of opening a port.
  [[nodiscard]] static Result<std::unique_ptr<Guest>> begin(std::shared_ptr<Keeper> keeper, const Door& door,
                                                            const Invitation& invitation);
  ~Guest() override;
  Guest(const Guest&) = delete;
  Guest& operator=(const Guest&) = delete;
  // Returns the peer once it has answered; null before. Errors: kPeerGone; what the peer refuses.
  [[nodiscard]] Result<std::unique_ptr<Peer>> step();
  void take_turn() override;
  void give_up(const char* why) override;

 private:
  Guest(std::shared_ptr<Keeper> keeper, std::string address, std::uint64_t number,
        bootstrap::Secret::Ptr secret, Descriptor socket, std::unique_ptr<Link> link);
  [[nodiscard]] Result<void> advance();
  // Advances, and dials again where a busy listener has dropped the connection.
  void try_to_advance();

  std::shared_ptr<Keeper> keeper_;
  std::mutex mutex_;
  std::string address_;
  std::uint64_t number_;
  bootstrap::Secret::Ptr secret_;
  Descriptor socket_;  // until it is connected
  bootstrap::Connection connection_;
  std::unique_ptr<Link> link_;
  bool answered_ = false;
  int redials_ = 0;
  std::optional<Error> error_;
};

}  // namespace gdx::messaging
