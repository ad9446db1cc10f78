#include "host/programs/cli/commands.h"

namespace gdx {

void add_proxy_command(command_line::Command app, int& exit_status) {
  const command_line::Command proxy = app.add_command(
      "proxy", "What is native and what emulated where a host thread posts for kernels: gdx proxy --explain");
  proxy.leave_help_out();  // the program explains its options itself
  proxy.keep_unknown();
  proxy.when_chosen(
      [proxy, &exit_status] { exit_status = become_sibling("gdx_proxy", "../proxy", proxy.unknown()); });
}

}  // namespace gdx
