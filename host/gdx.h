// libgdx, the host side: open an HCA, register memory, make endpoints, meet the other ranks, and hand
// EndpointHandles to kernels. demo/own is a whole program. host/topo/topology.h lists each GPU's
// distance from each NIC before any is opened; it is separate because it needs hwloc.
#pragma once

#if defined(__CUDACC__)
#error "host/gdx.h is for the C++ compiler: include device/gdx.h in what nvcc compiles"
#elif __cplusplus < 202002L
#error "host/gdx.h needs C++20: compile with -std=c++20 (device/gdx.h needs C++17)"
#else
#include "base/or_exit.h"
#include "host/bootstrap/world.h"
#include "host/gpu/gpu.h"
#include "host/hca/hca.h"
#include "host/memory/memory.h"
#include "host/peer/peer_mapping.h"
#include "host/queue/endpoint.h"
#include "host/staging/progress.h"
#include "host/staging/staging_pool.h"
#include "host/team/team.h"
#endif
