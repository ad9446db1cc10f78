// Ids of the uverbs ioctl that the kernel headers of Debian 12 lack.
// Sources: Linux include/uapi/rdma/ib_user_ioctl_cmds.h, mlx5_user_ioctl_cmds.h.
#pragma once

#include <cstdint>

namespace gdx::softhca::uverbs {

inline constexpr std::uint16_t kMethodQueryPortSpeed = 7;  // enum uverbs_methods_device
inline constexpr std::uint16_t kAttrQueryPortSpeedPortNum = 0;
inline constexpr std::uint16_t kAttrQueryPortSpeedResp = 1;

inline constexpr std::uint16_t kMethodGetDataDirectSysfsPath = 0x1001;  // enum mlx5_ib_device_methods
inline constexpr std::uint16_t kAttrGetDataDirectSysfsPath = 0x1000;

inline constexpr std::uint16_t kMethodRegMr = 5;  // enum uverbs_methods_mr
inline constexpr std::uint16_t kAttrRegMrHandle = 0;
inline constexpr std::uint16_t kAttrRegMrPdHandle = 1;
inline constexpr std::uint16_t kAttrRegMrIova = 3;
inline constexpr std::uint16_t kAttrRegMrAddr = 4;
inline constexpr std::uint16_t kAttrRegMrLength = 5;
inline constexpr std::uint16_t kAttrRegMrAccessFlags = 6;
inline constexpr std::uint16_t kAttrRegMrFd = 7;
inline constexpr std::uint16_t kAttrRegMrFdOffset = 8;
inline constexpr std::uint16_t kAttrRegMrRespLkey = 9;
inline constexpr std::uint16_t kAttrRegMrRespRkey = 10;

}  // namespace gdx::softhca::uverbs
