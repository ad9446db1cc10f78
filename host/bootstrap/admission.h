// Choice of how the ranks of a job recognise each other, and of who else could. A secret comes from here
// alone.
#pragma once

#include <string>

#include "base/result.h"
#include "host/bootstrap/secret.h"

namespace gdx {

inline constexpr char kSecretFileVariable[] = "GDX_SECRET_FILE";
// The number of an inherited descriptor (Secret::share), and nothing of the secret.
inline constexpr char kSecretDescriptorVariable[] = "GDX_SECRET_FD";
inline constexpr char kInsecureVariable[] = "GDX_INSECURE";  // 1: whoever reaches the ranks is one

namespace bootstrap {

struct Admission {
  Secret::Ptr secret;  // null: by the user behind a local socket, or by nothing
  std::string text;    // for a line of the log: the way, and its readers
};

// Chooses how the ranks that meet at `root` recognise each other, in this order: GDX_INSECURE; the file of
// GDX_SECRET_FILE; `given`, which the program or a launcher's store has supplied, and whose readers
// `given_by` tells; the descriptor of `gdx run`; the user, at a local socket. Errors: kInvalidArgument (TCP
// without a secret; a secret together with GDX_INSECURE), those of Secret.
[[nodiscard]] Result<Admission> choose_admission(const std::string& root, const Secret::Ptr& given = nullptr,
                                                 const std::string& given_by = {});

// Returns a new secret for rank 0 to tell the others through their launcher; null where the user's variables
// choose another way. Errors: those of choose_admission and Secret::make.
[[nodiscard]] Result<Secret::Ptr> secret_to_tell();

// Returns the secret that a launcher of ranks hands on: that of GDX_SECRET_FILE, or else a new one; null with
// GDX_INSECURE=1. Errors: those of choose_admission.
[[nodiscard]] Result<Secret::Ptr> secret_to_hand_on();

}  // namespace bootstrap
}  // namespace gdx
