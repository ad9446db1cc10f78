// Takes the place of libfabric_port.cpp where libfabric is missing.
#include "host/poster/libfabric_port.h"

namespace gdx {
namespace {

auto missing() {
  return fail(Status::kUnsupported,
              "this gdx was built without libfabric: install libfabric-dev and build again");
}

}  // namespace

Result<std::unique_ptr<Port>> open_libfabric_port(const LibfabricOptions&) { return missing(); }
Result<PortTraits> libfabric_traits(const LibfabricOptions&) { return missing(); }
Result<std::vector<LibfabricNic>> libfabric_nics(const LibfabricOptions&) { return missing(); }
Result<std::vector<std::string>> libfabric_providers() { return missing(); }

}  // namespace gdx
