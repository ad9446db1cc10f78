# Packages of Debian by `cpack -G DEB` in the build folder: libgdx0 the library, libgdx-dev what programs are built with,
# gdx the programs and the software HCA. A component of the installation is a package.
include(GdxDebian)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_COMPONENTS_ALL libgdx0 libgdx-dev gdx)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_INSTALL_PREFIX /usr)

set(CPACK_DEBIAN_LIBGDX0_DESCRIPTION "library
A CUDA kernel posts RDMA work requests itself, through a ConnectX, and waits
for their completion. This package has the host's library of it, which opens
devices, registers memory and introduces the ranks of a job.")
set(CPACK_DEBIAN_LIBGDX0_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBGDX-DEV_DESCRIPTION "development files
Headers for kernels and hosts, archives, and packages for CMake and pkg-config.
Kernels are compiled by nvcc, or by a C++ compiler for the CPU layer.")
set(CPACK_DEBIAN_LIBGDX-DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_LIBGDX-DEV_PACKAGE_DEPENDS "libgdx0 (= ${PROJECT_VERSION}), libibverbs-dev, libexpected-dev, \
libfmt-dev, libhwloc-dev, libssl-dev, libboost-context-dev, pkg-config")
set(CPACK_DEBIAN_GDX_DESCRIPTION "programs, and a ConnectX in software
The launcher of ranks, the doctor of a machine, benchmarks, the daemon that
owns devices, and a ConnectX in software below the unmodified libibverbs and
libmlx5, with faults by seed, for machines that have none.")
set(CPACK_DEBIAN_GDX_PACKAGE_SECTION net)
# CPack's own scripts call ldconfig, and Debian wants a trigger.
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/debian/shlibs "libgdx 0 libgdx0 (>= ${PROJECT_VERSION})\n")
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/debian/triggers "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_LIBGDX0_PACKAGE_CONTROL_EXTRA
  "${CMAKE_CURRENT_BINARY_DIR}/debian/shlibs;${CMAKE_CURRENT_BINARY_DIR}/debian/triggers")
set(CPACK_DEBIAN_GDX_PACKAGE_CONTROL_EXTRA ${CMAKE_CURRENT_BINARY_DIR}/debian/triggers)

foreach(package ${CPACK_COMPONENTS_ALL})
  string(TOUPPER ${package} variable)
  set(CPACK_DEBIAN_${variable}_PACKAGE_NAME ${package})
  gdx_debian_documents(${package} COMPONENT ${package} EXCLUDE_FROM_ALL)
endforeach()
include(CPack)
