// libgdx, the host side: open an HCA, register memory, make endpoints, meet the other ranks, and hand
// EndpointHandles to kernels. demo/own/put.cu is a whole program. host/topo/topology.h lists each GPU's
// distance from each NIC before any is opened; it is separate because it needs hwloc.
#pragma once

#include "host/bootstrap/world.h"
#include "host/gpu/gpu.h"
#include "host/hca/hca.h"
#include "host/memory/memory.h"
#include "host/peer/peer_mapping.h"
#include "host/queue/endpoint.h"
#include "host/staging/progress.h"
#include "host/staging/staging_pool.h"
