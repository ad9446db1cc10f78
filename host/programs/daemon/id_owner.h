// Owners of user ids. /etc/subuid(5) gives a user ranges of ids, which its containers use: whoever has them
// could come as many users.
#pragma once

#include <sys/types.h>

#include <string>

namespace gdx::daemon {

struct IdFiles {
  std::string ranges = "/etc/subuid";
  std::string users = "/etc/passwd";
};

// Returns the user whose range holds `user`; without one `user` itself. Of an owner that `users` does not
// name, the first id of its first range stands for it. Asks no name service, which could stop the caller.
[[nodiscard]] uid_t owner_of(uid_t user, const IdFiles& files);

}  // namespace gdx::daemon
