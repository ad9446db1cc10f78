// Stands for a profiler: NVTX loads it by $NVTX_INJECTION64_PATH, and it prints every range of the domain
// "gdx". Source: nvtx3/nvtxDetail/nvtxTypes.h, NvtxExportTableCallbacks and NvtxCallbackIdCore2.
#include <nvtx3/nvToolsExt.h>

#include <cstdio>
#include <cstring>

namespace {

int gdx_domain;  // its address is the handle
int depth;

nvtxDomainHandle_t NVTX_API create(const char* name) {
  return std::strcmp(name, "gdx") == 0 ? reinterpret_cast<nvtxDomainHandle_t>(&gdx_domain) : nullptr;
}
int NVTX_API push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* attributes) {
  if (domain == nullptr) return NVTX_NO_PUSH_POP_TRACKING;
  std::printf("begin %s\n", attributes->message.ascii);
  return depth++;
}
int NVTX_API pop(nvtxDomainHandle_t domain) {
  if (domain == nullptr) return NVTX_NO_PUSH_POP_TRACKING;
  std::printf("end %d\n", --depth);
  return depth;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int NVTX_API
InitializeInjectionNvtx2(NvtxGetExportTableFunc_t export_table) {
  const auto* const callbacks =
      static_cast<const NvtxExportTableCallbacks*>(export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable functions = nullptr;
  unsigned count = 0;
  if (callbacks == nullptr ||
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &functions, &count) == 0 ||
      count <= NVTX_CBID_CORE2_DomainCreateA) {
    return 0;
  }
  *functions[NVTX_CBID_CORE2_DomainCreateA] = reinterpret_cast<NvtxFunctionPointer>(create);
  *functions[NVTX_CBID_CORE2_DomainRangePushEx] = reinterpret_cast<NvtxFunctionPointer>(push);
  *functions[NVTX_CBID_CORE2_DomainRangePop] = reinterpret_cast<NvtxFunctionPointer>(pop);
  return 1;
}
