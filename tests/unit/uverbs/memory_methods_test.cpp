// Methods on memory: what is registered, whole, and what is refused.
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "driver-shim/softhca/engine/paging.h"
#include "driver-shim/softhca/uverbs/memory_objects.h"
#include "driver-shim/softhca/uverbs/newer_ids.h"
#include "tests/unit/uverbs/device_node.h"

namespace gdx::softhca::uverbs {
namespace memory_methods_test {

// By the methods' attributes, one beside another.
struct Registration {
  std::uint16_t method, handle, pd, start, length, iova, access, fd, lkey, rkey;
};
constexpr Registration kDmabuf{UVERBS_METHOD_REG_DMABUF_MR,
                               UVERBS_ATTR_REG_DMABUF_MR_HANDLE,
                               UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE,
                               UVERBS_ATTR_REG_DMABUF_MR_OFFSET,
                               UVERBS_ATTR_REG_DMABUF_MR_LENGTH,
                               UVERBS_ATTR_REG_DMABUF_MR_IOVA,
                               UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS,
                               UVERBS_ATTR_REG_DMABUF_MR_FD,
                               UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY,
                               UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY};
constexpr Registration kFile{kMethodRegMr,       kAttrRegMrHandle,  kAttrRegMrPdHandle,    kAttrRegMrFdOffset,
                             kAttrRegMrLength,   kAttrRegMrIova,    kAttrRegMrAccessFlags, kAttrRegMrFd,
                             kAttrRegMrRespLkey, kAttrRegMrRespRkey};
constexpr Registration kAddress{kMethodRegMr,       kAttrRegMrHandle,  kAttrRegMrPdHandle,    kAttrRegMrAddr,
                                kAttrRegMrLength,   kAttrRegMrIova,    kAttrRegMrAccessFlags, 0,
                                kAttrRegMrRespLkey, kAttrRegMrRespRkey};

struct Region {
  std::uint32_t pd;
  std::uint64_t start;
  std::uint64_t length;
  std::uint64_t iova;
  std::uint32_t access;
  int fd = -1;
};

class MemoryMethods : public DeviceNode {
 protected:
  void SetUp() override {
    DeviceNode::SetUp();
    other_pd_ = alloc_pd();
    pd_ = alloc_pd();
    buffer_ = Descriptor(memfd_create("dmabuf", MFD_CLOEXEC));
    ASSERT_EQ(ftruncate(buffer_.value(), 4 * kPageBytes), 0);
    ASSERT_EQ(lseek(buffer_.value(), kPageBytes, SEEK_SET), static_cast<off_t>(kPageBytes));
  }
  Request make_region(const Registration& how, const Region& region) {
    Request request(UVERBS_OBJECT_MR, how.method, nothing_);
    request.handle(how.handle, 0)
        .handle(how.pd, region.pd)
        .in(how.start, region.start)
        .in(how.length, region.length)
        .in(how.iova, region.iova)
        .in(how.access, region.access)
        .out(how.lkey, 4)
        .out(how.rkey, 4);
    if (region.fd >= 0) request.handle(how.fd, static_cast<std::uint32_t>(region.fd));
    return request;
  }
  Errno error_of_region(const Registration& how, const Region& region) {
    return make_region(how, region).run(*context_);
  }
  void expect_region(const Request& request, const Registration& how, const Region& region) {
    const auto handle = static_cast<std::uint32_t>(request.written(how.handle));
    ASSERT_NE(context_->objects.look(handle), nullptr);
    const std::uint32_t key = number_of(handle);
    EXPECT_EQ(request.answer<std::uint32_t>(how.lkey), key);
    EXPECT_EQ(request.answer<std::uint32_t>(how.rkey), key);
    EXPECT_EQ(hca_->region.pd, number_of(region.pd));
    EXPECT_EQ(hca_->region.iova, region.iova);
    EXPECT_EQ(hca_->region.length_bytes, region.length);
    EXPECT_EQ(hca_->region.access, region.access);
    EXPECT_FALSE(hca_->region.device_memory);
    expect_queried(handle, region);
    EXPECT_EQ(destroy(UVERBS_OBJECT_PD, UVERBS_METHOD_PD_DESTROY, region.pd), EBUSY);
  }
  void expect_queried(std::uint32_t handle, const Region& region) {
    auto query = make(UVERBS_OBJECT_MR, UVERBS_METHOD_QUERY_MR);
    query.handle(UVERBS_ATTR_QUERY_MR_HANDLE, handle)
        .out(UVERBS_ATTR_QUERY_MR_RESP_LKEY, 4)
        .out(UVERBS_ATTR_QUERY_MR_RESP_RKEY, 4)
        .out(UVERBS_ATTR_QUERY_MR_RESP_LENGTH, 8)
        .out(UVERBS_ATTR_QUERY_MR_RESP_IOVA, 8);
    ASSERT_EQ(query.run(*context_), 0);
    EXPECT_EQ(query.answer<std::uint32_t>(UVERBS_ATTR_QUERY_MR_RESP_LKEY), number_of(handle));
    EXPECT_EQ(query.answer<std::uint32_t>(UVERBS_ATTR_QUERY_MR_RESP_RKEY), number_of(handle));
    EXPECT_EQ(query.answer<std::uint64_t>(UVERBS_ATTR_QUERY_MR_RESP_LENGTH), region.length);
    EXPECT_EQ(query.answer<std::uint64_t>(UVERBS_ATTR_QUERY_MR_RESP_IOVA), region.iova);
  }
  Request allocate(std::uint64_t length, std::uint32_t log_alignment) {
    Request request(UVERBS_OBJECT_DM, UVERBS_METHOD_DM_ALLOC, nothing_);
    request.handle(UVERBS_ATTR_ALLOC_DM_HANDLE, 0)
        .in(UVERBS_ATTR_ALLOC_DM_LENGTH, length)
        .in(UVERBS_ATTR_ALLOC_DM_ALIGNMENT, log_alignment)
        .in(MLX5_IB_ATTR_ALLOC_DM_REQ_TYPE, std::uint64_t{MLX5_IB_UAPI_DM_TYPE_MEMIC})
        .out(MLX5_IB_ATTR_ALLOC_DM_RESP_START_OFFSET, 8)
        .out(MLX5_IB_ATTR_ALLOC_DM_RESP_PAGE_INDEX, 2);
    return request;
  }
  std::uint32_t add_dm(std::uint64_t length, std::uint16_t expected_page) {
    auto request = allocate(length, 12);
    EXPECT_EQ(request.run(*context_), 0);
    EXPECT_EQ(request.answer<std::uint16_t>(MLX5_IB_ATTR_ALLOC_DM_RESP_PAGE_INDEX), expected_page);
    return static_cast<std::uint32_t>(request.written(UVERBS_ATTR_ALLOC_DM_HANDLE));
  }

  std::uint32_t other_pd_ = 0;
  std::uint32_t pd_ = 0;
  Descriptor buffer_;
};

TEST_F(MemoryMethods, region_has_its_own_range_rights_and_domain_by_each_method) {
  const Region of_memory{pd_, at(4096 + 24), 4096, 0x7f0000002018, 0xf};
  auto request = make_region(kAddress, of_memory);
  ASSERT_EQ(request.run(*context_), 0);
  EXPECT_EQ(hca_->region.base, pointer(4096 + 24));
  expect_region(request, kAddress, of_memory);
  for (const Registration& how : {kDmabuf, kFile}) {
    SCOPED_TRACE(how.method);
    char* const bytes = static_cast<char*>(
        mmap(nullptr, 4 * kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, buffer_.value(), 0));
    bytes[kPageBytes + 24] = 'x';
    munmap(bytes, 4 * kPageBytes);
    // The buffer begins at the file's position and ends with the file.
    const Region whole{pd_, 24, 3 * kPageBytes - 24, 0x7f0000002018, 0xf, buffer_.value()};
    auto made = make_region(how, whole);
    ASSERT_EQ(made.run(*context_), 0);
    EXPECT_EQ(*reinterpret_cast<const char*>(hca_->region.base), 'x');
    expect_region(made, how, whole);
    const auto wrong = [&](auto change) {
      Region region = whole;
      change(region);
      return error_of_region(how, region);
    };
    EXPECT_EQ(wrong([](Region& it) { ++it.length; }), EINVAL);
    EXPECT_EQ(wrong([](Region& it) { it.length = 0; }), EINVAL);
    EXPECT_EQ(wrong([](Region& it) { it.start = it.iova = 4 * kPageBytes; }), EINVAL);
    const auto wraps = [](Region& it) {
      it.start = 0 - kPageBytes;
      it.iova = 4 * kPageBytes;
      it.length = 2 * kPageBytes;
    };
    EXPECT_EQ(wrong(wraps), EINVAL) << "to within the buffer";
    EXPECT_EQ(wrong([](Region& it) { ++it.iova; }), EINVAL);
    EXPECT_EQ(wrong([](Region& it) { it.access = 1 << 6; }), EINVAL) << "paged on demand";
    EXPECT_EQ(wrong([](Region& it) { it.access = 2; }), EINVAL) << "peers may write, this process may not";
    EXPECT_EQ(wrong([](Region& it) { it.pd = 99; }), ENOENT);
    EXPECT_EQ(wrong([](Region& it) { it.fd = 900; }), EBADF);
    for (const std::uint16_t id : {how.pd, how.start, how.length, how.iova, how.access})
      EXPECT_EQ(make_region(how, whole).leave_out(id).run(*context_), EINVAL) << id;
    for (const std::uint16_t id : {how.lkey, how.rkey}) {
      auto refused = make_region(how, whole);
      EXPECT_EQ(refused.redirect(id, kNowhere).run(*context_), EFAULT);
    }
  }
  EXPECT_EQ(objects(), 5u);
  const Descriptor plain(memfd_create("dmabuf2", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(plain.value(), kPageBytes), 0);
  EXPECT_EQ(error_of_region(kDmabuf, {pd_, 0, 64, 0, 1, plain.value()}), EINVAL) << "no dmabuf";
  context_->objects.clear();
}

TEST_F(MemoryMethods, region_of_memory_that_is_not_the_programs_is_refused) {
  mprotect(arena_.data() + kArenaBytes - kPageBytes, kPageBytes, PROT_READ);
  const Region valid{pd_, at(4096), 4096, at(4096), 0xf};
  const std::uint64_t end = at(kArenaBytes);
  struct Wrong {
    Region region;
    Errno error;
  };
  const Wrong wrongs[] = {
      {{pd_, at(4096), 0, at(4096), 0xf}, EINVAL},      {{pd_, at(4096), 64, at(4097), 0xf}, EINVAL},
      {{pd_, end - 8192, 8192, end - 8192, 1}, EFAULT}, {{pd_, end - 8192, 8192, end - 8192, 8 | 1}, EFAULT},
      {{pd_, end - 8192, 8193, end - 8192, 4}, EFAULT}, {{pd_, at(0) - 1, 2, at(0) - 1, 0}, EFAULT},
      {{pd_, ~0ull - 63, 128, ~0ull - 63, 0}, EINVAL},  {{pd_, at(4096), 64, at(4096), 1 << 8}, EINVAL},
      {{pd_, at(4096), 64, at(4096), 8}, EINVAL},       {{99, at(4096), 64, at(4096), 0}, ENOENT}};
  for (const Wrong& wrong : wrongs) {
    EXPECT_EQ(error_of_region(kAddress, wrong.region), wrong.error) << &wrong - wrongs;
    ib_uverbs_reg_mr core{};
    core.pd_handle = wrong.region.pd;
    core.start = wrong.region.start;
    core.length = wrong.region.length;
    core.hca_va = wrong.region.iova;
    core.access_flags = wrong.region.access;
    EXPECT_EQ(error_of(IB_USER_VERBS_CMD_REG_MR, core), wrong.error == ENOENT ? EINVAL : wrong.error);
  }
  EXPECT_EQ(error_of_region(kAddress, {pd_, end - 8192, 8192, end - 8192, 4}), 0) << "of which peers read";
  mprotect(arena_.data(), kPageBytes, PROT_WRITE);
  EXPECT_EQ(error_of_region(kAddress, {pd_, at(0), 8192, at(0), 1}), 0) << "not readable to the program";
  EXPECT_EQ(error_of_region(kAddress, {pd_, at(0), 8192, at(0), 4}), EFAULT)
      << "nor to an HCA that only reads";
  for (const std::uint16_t id :
       {kAddress.pd, kAddress.start, kAddress.length, kAddress.iova, kAddress.access})
    EXPECT_EQ(make_region(kAddress, valid).leave_out(id).run(*context_), EINVAL) << id;
  auto both = make_region(kAddress, valid);
  EXPECT_EQ(both.handle(kAttrRegMrFd, 3).run(*context_), EINVAL);
  EXPECT_EQ(error_of_region(kFile, valid), EINVAL) << "an offset into no file";
}

TEST_F(MemoryMethods, region_registered_again_changes_what_was_asked_for_alone) {
  ib_uverbs_reg_mr core{};
  core.pd_handle = other_pd_;
  core.start = at(4096);
  core.hca_va = at(4096);
  core.length = 64;
  core.access_flags = 1;
  const auto made = answer<std::array<std::uint32_t, 3>>(IB_USER_VERBS_CMD_REG_MR, core);
  EXPECT_EQ(made[1], number_of(made[0]));
  EXPECT_EQ(made[2], made[1]);
  ib_uverbs_rereg_mr asked{};
  asked.mr_handle = made[0];
  asked.start = at(8192 + 8);
  asked.hca_va = 0x10008;
  asked.length = 128;
  asked.pd_handle = pd_;
  asked.access_flags = 0xf;
  const auto change = [this, known = &asked](std::uint32_t flags) {
    known->flags = flags;
    return answer<ib_uverbs_rereg_mr_resp>(IB_USER_VERBS_CMD_REREG_MR, *known);
  };
  const auto refused = [this, known = &asked](std::uint32_t flags, auto wrong) {
    ib_uverbs_rereg_mr changed = *known;
    changed.flags = flags;
    wrong(changed);
    return error_of(IB_USER_VERBS_CMD_REREG_MR, changed);
  };
  EXPECT_EQ(bytes_of(change(1)), bytes_of(ib_uverbs_rereg_mr_resp{made[1], made[1]}));
  EXPECT_EQ(hca_->region.base, pointer(8192 + 8));
  expect_queried(made[0], {pd_, 0, 128, 0x10008, 0});
  EXPECT_EQ(hca_->region.access, 1u);
  EXPECT_EQ(hca_->region.pd, number_of(other_pd_));
  change(4);
  EXPECT_EQ(hca_->region.access, 0xfu);
  EXPECT_EQ(hca_->region.pd, number_of(other_pd_));
  EXPECT_EQ(hca_->region.base, pointer(8192 + 8));
  change(2);
  EXPECT_EQ(hca_->region.pd, number_of(pd_));
  EXPECT_EQ(hca_->region.access, 0xfu);
  EXPECT_EQ(destroy(UVERBS_OBJECT_PD, UVERBS_METHOD_PD_DESTROY, pd_), EBUSY);
  EXPECT_EQ(destroy(UVERBS_OBJECT_PD, UVERBS_METHOD_PD_DESTROY, other_pd_), 0);
  EXPECT_EQ(refused(0, [](auto&) {}), EINVAL);
  EXPECT_EQ(refused(8, [](auto&) {}), EOPNOTSUPP);
  EXPECT_EQ(refused(1, [this](auto& it) { it.mr_handle = pd_; }), EINVAL);
  EXPECT_EQ(refused(2, [&](auto& it) { it.pd_handle = made[0]; }), EINVAL);
  EXPECT_EQ(refused(4, [](auto& it) { it.access_flags = 2; }), EINVAL);
  const auto wraps = [](auto& it) {
    it.start = 8 - kPageBytes;
    it.length = 2 * kPageBytes;
  };
  EXPECT_EQ(refused(1, wraps), EINVAL);
  EXPECT_EQ(refused(1, [this](auto& it) { it.start = it.hca_va = at(kArenaBytes - 64); }), EFAULT);
  if (can_page_in()) {
    EXPECT_EQ(refused(4, [](auto& it) { it.access_flags = 0x41; }), EOPNOTSUPP);
  }
  expect_queried(made[0], {pd_, 0, 128, 0x10008, 0});
}

TEST_F(MemoryMethods, window_is_of_its_kind) {
  for (const std::uint8_t type : std::initializer_list<std::uint8_t>{0, 1, 2, 3}) {
    ib_uverbs_alloc_mw core{};
    core.pd_handle = pd_;
    core.mw_type = type;
    if (type % 3 == 0) {
      EXPECT_EQ(error_of(IB_USER_VERBS_CMD_ALLOC_MW, core), EINVAL);
      continue;
    }
    const auto made = answer<std::array<std::uint32_t, 2>>(IB_USER_VERBS_CMD_ALLOC_MW, core);
    EXPECT_EQ(made[1], number_of(made[0]));
    EXPECT_EQ(hca_->region.pd, number_of(pd_));
    ASSERT_TRUE(hca_->region.umr);
    EXPECT_TRUE(hca_->region.umr->window);
    EXPECT_TRUE(hca_->region.umr->free);
    EXPECT_EQ(hca_->region.umr->peer_may_invalidate, type == 2);
    EXPECT_EQ(hca_->region.umr->max_entries, 4u);
    EXPECT_EQ(destroy(UVERBS_OBJECT_PD, UVERBS_METHOD_PD_DESTROY, pd_), EBUSY);
    EXPECT_EQ(destroy(UVERBS_OBJECT_MW, UVERBS_METHOD_MW_DESTROY, made[0]), 0);
  }
}

TEST_F(MemoryMethods, device_memory_takes_the_first_place_that_fits_and_gives_it_back) {
  const std::uint32_t first = add_dm(1, 0);
  const std::uint32_t second = add_dm(kPageBytes + 1, 1);
  EXPECT_EQ(allocate(2 * kPageBytes, 0).run(*context_), ENOMEM);
  add_dm(kPageBytes, 3);
  EXPECT_EQ(destroy(UVERBS_OBJECT_DM, UVERBS_METHOD_DM_FREE, first), 0);
  EXPECT_EQ(allocate(2 * kPageBytes, 0).run(*context_), ENOMEM);
  EXPECT_EQ(destroy(UVERBS_OBJECT_DM, UVERBS_METHOD_DM_FREE, second), 0);
  EXPECT_EQ(allocate(kPageBytes, 13).run(*context_), EINVAL);
  EXPECT_EQ(allocate(0, 12).run(*context_), EINVAL);
  for (const auto id : {UVERBS_ATTR_ALLOC_DM_LENGTH, UVERBS_ATTR_ALLOC_DM_ALIGNMENT})
    EXPECT_EQ(allocate(kPageBytes, 12).leave_out(id).run(*context_), EINVAL) << id;
  EXPECT_EQ(allocate(4 * kPageBytes + 1, 12).run(*context_), ENOMEM);
  for (const std::uint16_t id : std::initializer_list<std::uint16_t>{MLX5_IB_ATTR_ALLOC_DM_RESP_START_OFFSET,
                                                                     MLX5_IB_ATTR_ALLOC_DM_RESP_PAGE_INDEX}) {
    auto refused = allocate(3 * kPageBytes, 12);
    EXPECT_EQ(refused.redirect(id, kNowhere).run(*context_), EFAULT) << "and keeps no page";
  }
  const std::uint32_t dm = add_dm(3 * kPageBytes - 100, 0);
  auto query = make(UVERBS_OBJECT_DM, MLX5_IB_METHOD_DM_QUERY);
  query.handle(MLX5_IB_ATTR_QUERY_DM_REQ_HANDLE, dm)
      .out(MLX5_IB_ATTR_QUERY_DM_RESP_START_OFFSET, 8)
      .out(MLX5_IB_ATTR_QUERY_DM_RESP_PAGE_INDEX, 2)
      .out(MLX5_IB_ATTR_QUERY_DM_RESP_LENGTH, 8);
  ASSERT_EQ(query.run(*context_), 0);
  EXPECT_EQ(query.answer<std::uint64_t>(MLX5_IB_ATTR_QUERY_DM_RESP_LENGTH), 3 * kPageBytes - 100);
  const auto region = [&](std::uint64_t offset, std::uint64_t length, std::uint32_t access,
                          std::uint16_t left_out = 0xffff) {
    Request request(UVERBS_OBJECT_MR, UVERBS_METHOD_DM_MR_REG, nothing_);
    request.handle(UVERBS_ATTR_REG_DM_MR_HANDLE, 0)
        .handle(UVERBS_ATTR_REG_DM_MR_PD_HANDLE, pd_)
        .handle(UVERBS_ATTR_REG_DM_MR_DM_HANDLE, dm)
        .in(UVERBS_ATTR_REG_DM_MR_OFFSET, offset)
        .in(UVERBS_ATTR_REG_DM_MR_LENGTH, length)
        .in(UVERBS_ATTR_REG_DM_MR_ACCESS_FLAGS, access)
        .out(UVERBS_ATTR_REG_DM_MR_RESP_LKEY, 4)
        .out(UVERBS_ATTR_REG_DM_MR_RESP_RKEY, 4)
        .leave_out(left_out);
    return request.run(*context_);
  };
  constexpr std::uint64_t kEnd = 3 * kPageBytes - 100;
  ASSERT_EQ(region(64, kEnd - 64, 0x2f), 0);
  EXPECT_EQ(hca_->region.base, device_memory_.memory() + 64);
  EXPECT_EQ(hca_->region.length_bytes, kEnd - 64);
  EXPECT_EQ(hca_->region.iova, 0u);
  EXPECT_EQ(hca_->region.access, 0x2fu);
  EXPECT_EQ(hca_->region.pd, number_of(pd_));
  EXPECT_TRUE(hca_->region.device_memory);
  EXPECT_EQ(destroy(UVERBS_OBJECT_DM, UVERBS_METHOD_DM_FREE, dm), EBUSY);
  EXPECT_EQ(region(64, kEnd - 63, 0x2f), EINVAL);
  EXPECT_EQ(region(0 - std::uint64_t{64}, 128, 0x2f), EINVAL) << "wraps";
  EXPECT_EQ(region(kEnd + 1, 0, 0x2f), EINVAL);
  EXPECT_EQ(region(64, 64, 0xf), EINVAL) << "not zero-based";
  for (const auto id :
       {UVERBS_ATTR_REG_DM_MR_OFFSET, UVERBS_ATTR_REG_DM_MR_LENGTH, UVERBS_ATTR_REG_DM_MR_ACCESS_FLAGS})
    EXPECT_EQ(region(64, 64, 0x2f, id), EINVAL) << id;
  EXPECT_EQ(region(64, 64, 0x3f), EINVAL) << "may be bound";
}

// Of files of the HCA, in this process.
int mappings() {
  std::ifstream maps("/proc/self/maps");
  int found = 0;
  for (std::string line; std::getline(maps, line);) found += line.find("gdx-softhca") != std::string::npos;
  return found;
}

TEST_F(MemoryMethods, doorbell_page_is_at_its_offset_in_the_file) {
  const auto make_uar = [this](std::uint64_t type) {
    Request request(MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_ALLOC, nothing_);
    request.handle(MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE, 0)
        .in(MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE, type)
        .out(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, 8)
        .out(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, 4)
        .out(MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, 4);
    return request;
  };
  std::vector<std::uint32_t> handles;
  for (std::uint64_t i = 0; i < 3; ++i) {
    auto request = make_uar(i % 2);
    ASSERT_EQ(request.run(*context_), 0);
    handles.push_back(static_cast<std::uint32_t>(request.written(MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE)));
    EXPECT_EQ(request.answer<std::uint32_t>(MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID), number_of(handles.back()));
    EXPECT_EQ(request.answer<std::uint32_t>(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH), 4096u);
    EXPECT_EQ(request.answer<std::uint64_t>(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET), (0x900 + i) * 4096);
  }
  EXPECT_EQ(make_uar(2).run(*context_), EOPNOTSUPP);
  for (const std::size_t gone : {std::size_t{1}, std::size_t{0}})
    EXPECT_EQ(destroy(MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_DESTROY, handles[gone]), 0);
  for (const std::uint64_t page : {1u, 0u, 3u}) {
    auto request = make_uar(0);
    ASSERT_EQ(request.run(*context_), 0);
    EXPECT_EQ(request.answer<std::uint64_t>(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET), (0x900 + page) * 4096)
        << "that which has been free for longest";
  }
  struct stat facts {};
  ASSERT_EQ(fstat(context_->pages.fd(), &facts), 0);
  EXPECT_EQ(facts.st_size, (0x900 + 16384) * 4096) << "its holder can fill no page that nothing uses";
  const int before = mappings();
  EXPECT_GT(before, 0);
  for (int i = 0; i < 10; ++i) {
    auto request = make_uar(0);
    ASSERT_EQ(request.run(*context_), 0);
    const auto handle = static_cast<std::uint32_t>(request.written(MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE));
    EXPECT_EQ(destroy(MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_DESTROY, handle), 0);
  }
  EXPECT_EQ(mappings(), before);
}

TEST_F(MemoryMethods, advice_reaches_the_engine_range_by_range) {
  const auto advise = [this](std::uint64_t advice, std::uint32_t flags, std::size_t bytes = 32) {
    struct Range {
      std::uint64_t address;
      std::uint32_t length, lkey;
    };
    const std::array<Range, 2> ranges{{{0x1000, 7, 0x11}, {0x2000, 9, 0x22}}};
    Request request(UVERBS_OBJECT_MR, UVERBS_METHOD_ADVISE_MR, nothing_);
    hca_->fetched.clear();
    return request.handle(UVERBS_ATTR_ADVISE_MR_PD_HANDLE, pd_)
        .in(UVERBS_ATTR_ADVISE_MR_ADVICE, advice)
        .in(UVERBS_ATTR_ADVISE_MR_FLAGS, flags)
        .in(UVERBS_ATTR_ADVISE_MR_SGE_LIST, ranges)
        .resize(UVERBS_ATTR_ADVISE_MR_SGE_LIST, bytes)
        .run(*context_);
  };
  const Prefetch kinds[] = {Prefetch::kForReading, Prefetch::kForWriting, Prefetch::kCheck};
  for (std::uint64_t advice = 0; advice < 3; ++advice) {
    EXPECT_EQ(advise(advice, 0), 0);
    const std::vector<NotingEngine::Fetched> expected = {{number_of(pd_), 0x11, 0x1000, 7, kinds[advice]},
                                                         {number_of(pd_), 0x22, 0x2000, 9, kinds[advice]}};
    EXPECT_EQ(hca_->fetched, expected) << advice;
  }
  EXPECT_EQ(advise(3, 0), EOPNOTSUPP);
  EXPECT_EQ(advise(0, 2), EINVAL);
  EXPECT_EQ(advise(0, 0, 24), EINVAL);
  hca_->fetch_error = EFAULT;
  EXPECT_EQ(advise(0, 0), 0);
  EXPECT_EQ(hca_->fetched.size(), 2u);
  EXPECT_EQ(advise(0, 1), EFAULT);
  EXPECT_EQ(hca_->fetched.size(), 1u);
  hca_->fetch_error = ENOENT;
  EXPECT_EQ(advise(0, 0), ENOENT);
}

}  // namespace memory_methods_test
}  // namespace gdx::softhca::uverbs
