#include "host/programs/cli/commands.h"

namespace gdx {

// The model stands in for hardware, so it is a program of its own, below which libgdx is not linked.
void add_model_command(command_line::Command app, int& exit_status) {
  const command_line::Command model = app.add_command(
      "model", "Modelled latency, rate and PCIe transactions of a put: gdx model --path SYS --gen 5 ...");
  model.leave_help_out();  // the program explains its options itself
  model.keep_unknown();
  model.when_chosen([model, &exit_status] {
    exit_status = become_sibling("gdx_model", "../../../driver-shim/pcie/model", model.unknown());
  });
}

}  // namespace gdx
