// The handlers of INVOKE_WRITE's commands.
#pragma once

#include <rdma/ib_user_ioctl_cmds.h>

#include "driver-shim/softhca/uverbs/attributes.h"
#include "driver-shim/softhca/uverbs/context.h"

namespace gdx::softhca::uverbs {

// A command's core request and response; the driver's own parts are UHW attributes, as for any method.
struct WriteRequest {
  Attributes& attributes;

  template <typename T>
  [[nodiscard]] Errno read(T& core) const {
    return attributes.read_bytes(UVERBS_ATTR_CORE_IN, &core, sizeof core, 0);
  }
  template <typename T>
  Errno respond(const T& response) {
    return attributes.write(UVERBS_ATTR_CORE_OUT, response);
  }
  template <typename T>
  Errno respond_driver(const T& response) {
    return attributes.write(UVERBS_ATTR_UHW_OUT, response);
  }
};

// write_device.cpp
Errno write_query_device(Context& context, WriteRequest& request);
Errno write_query_device_ex(Context& context, WriteRequest& request);
Errno write_alloc_pd(Context& context, WriteRequest& request);
Errno write_create_comp_channel(Context& context, WriteRequest& request);
Errno write_create_ah(Context& context, WriteRequest& request);
// write_memory.cpp
Errno write_reg_mr(Context& context, WriteRequest& request);
Errno write_rereg_mr(Context& context, WriteRequest& request);
Errno write_alloc_mw(Context& context, WriteRequest& request);
// write_queue.cpp
Errno write_resize_cq(Context& context, WriteRequest& request);
Errno write_query_qp(Context& context, WriteRequest& request);
Errno write_modify_qp(Context& context, WriteRequest& request);
Errno write_modify_qp_ex(Context& context, WriteRequest& request);
Errno write_query_srq(Context& context, WriteRequest& request);
Errno write_modify_srq(Context& context, WriteRequest& request);

}  // namespace gdx::softhca::uverbs
