// libgdx, the host side: open an HCA, register memory, make endpoints, meet the other ranks, and hand
// EndpointHandles to kernels. demo/own/put.cu is a whole program. Which NIC is near which GPU, before any is
// opened: host/topo/topology.h, which stands alone because it needs hwloc.
#pragma once

#include "host/bootstrap/world.h"
#include "host/gpu/gpu.h"
#include "host/hca/hca.h"
#include "host/memory/memory.h"
#include "host/peer/peer_mapping.h"
#include "host/queue/endpoint.h"
#include "host/staging/progress.h"
#include "host/staging/staging_pool.h"
