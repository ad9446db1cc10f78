// libgdx, the host side. Most programs create a Team (host/team/team.h). It meets the other ranks, opens the
// HCA and makes a symmetric heap. The program's kernels take the team's handle, and call device/team.h.
// docs/TUTORIAL.md builds such a program.
//
// A program that wants to own these parts makes them itself. It opens an HCA, registers memory and makes
// endpoints. It then meets the other ranks and hands EndpointHandles to kernels, which call
// device/endpoint.h. demo/own is such a program.
//
// host/topo/topology.h lists the distance of each GPU from each NIC, without opening them. It is separate
// because it needs hwloc.
#pragma once

#if defined(__CUDACC__)
#error "host/gdx.h is for the C++ compiler: include device/team.h or device/endpoint.h in what nvcc compiles"
#elif __cplusplus < 202002L
#error "host/gdx.h needs C++20: compile with -std=c++20 (device/team.h and device/endpoint.h need C++17)"
#else
#include "base/or_exit.h"
#include "host/bootstrap/world.h"
#include "host/direct/peer_mapping.h"
#include "host/gpu/gpu.h"
#include "host/hca/hca.h"
#include "host/memory/memory.h"
#include "host/queue/endpoint.h"
#include "host/staging/progress.h"
#include "host/staging/staging_pool.h"
#include "host/team/team.h"
#endif
