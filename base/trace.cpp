#include "base/trace.h"

#if defined(GDX_HAVE_NVTX)
#include <nvtx3/nvToolsExt.h>
#endif

namespace gdx {

#if defined(GDX_HAVE_NVTX)

namespace {

// Never destroyed: spans may end while the process runs its exit handlers.
nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t instance = nvtxDomainCreateA("gdx");
  return instance;
}

}  // namespace

TraceSpan::TraceSpan(const char* name) {
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = name;
  nvtxDomainRangePushEx(domain(), &attributes);
}
TraceSpan::~TraceSpan() { nvtxDomainRangePop(domain()); }
bool TraceSpan::compiled_in() { return true; }

#else

TraceSpan::TraceSpan(const char*) {}
TraceSpan::~TraceSpan() = default;
bool TraceSpan::compiled_in() { return false; }

#endif

}  // namespace gdx
