// Kernels of a user's shared object, and Python's values as their arguments.
#pragma once

#include <dlfcn.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/filesystem.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "proto/gpu/exported_kernel.h"
#include "raise.h"

namespace gdx::python {

// A shared object, which stays loaded, because a kernel may run in another thread.
class Kernels {
 public:
  explicit Kernels(const std::filesystem::path& path) : path_(std::filesystem::absolute(path).string()) {
    object_ = dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (object_ != nullptr) return;
    PyErr_SetString(PyExc_OSError, dlerror());
    throw nanobind::python_error();
  }

  // Raises KeyError where the object has no such kernel, Error where it was built with another gdx.
  [[nodiscard]] const ExportedKernel& find(const std::string& name) const {
    const auto* const kernel =
        static_cast<const ExportedKernel*>(dlsym(object_, ("gdx_kernel_" + name).c_str()));
    if (kernel == nullptr) {
      throw nanobind::key_error(
          ("no kernel '" + name + "' in " + path_ + ": GDX_EXPORT_KERNEL(" + name + ", TYPES...) exports it")
              .c_str());
    }
    if (kernel->version != kExportedKernelVersion || kernel->team_layout != kTeamLayoutVersion) {
      raise(Status::kVersionMismatch,
            path_ + " was built with the headers of another gdx: build it with this one's", {});
    }
    return *kernel;
  }

 private:
  std::string path_;
  void* object_;
};

// The values of one launch, for as long as the arguments live.
class KernelValues {
 public:
  KernelValues(const std::string& name, const ExportedKernel& kernel, const nanobind::args& arguments)
      : name_(name) {
    if (arguments.size() != kernel.argument_count) {
      throw nanobind::type_error((name + ": takes " + std::to_string(kernel.argument_count) +
                                  " arguments, and got " + std::to_string(arguments.size()))
                                     .c_str());
    }
    words_.reserve(arguments.size());
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      index_ = i;
      const KernelArgument& want = kernel.arguments[i];
      words_.push_back(want.is_pointer ? address_of(want, arguments[i]) : number_of(want, arguments[i]));
    }
    for (const std::uint64_t& word : words_) pointers_.push_back(&word);
  }
  KernelValues(const KernelValues&) = delete;
  KernelValues& operator=(const KernelValues&) = delete;

  [[nodiscard]] const void* const* pointers() const { return pointers_.data(); }

 private:
  static std::string type_of(const KernelArgument& want) {
    if (want.value == KernelValue::kBool) return "bool";
    const std::string bits = std::to_string(8 * want.bytes);
    if (want.value == KernelValue::kFloat) return "float" + bits;
    return (want.value == KernelValue::kSigned ? "int" : "uint") + bits;
  }

  [[noreturn]] void refuse(const std::string& wanted, nanobind::handle value) const {
    throw nanobind::type_error((name_ + ": argument " + std::to_string(index_ + 1) + " is " + wanted +
                                ", and got " +
                                nanobind::cast<std::string>(nanobind::repr(nanobind::handle(value.type()))))
                                   .c_str());
  }

  [[nodiscard]] std::uint64_t address_of(const KernelArgument& want, nanobind::handle value) const {
    using nanobind::dlpack::dtype_code;
    constexpr dtype_code kCodes[] = {dtype_code::Bool, dtype_code::Int, dtype_code::UInt, dtype_code::Float};
    nanobind::ndarray<nanobind::ro, nanobind::c_contig, nanobind::device::cpu> array;
    const std::string wanted = "an array of " + type_of(want) + " without gaps";
    if (!nanobind::try_cast(value, array, false)) refuse(wanted, value);
    const auto type = array.dtype();
    if (type.code != static_cast<std::uint8_t>(kCodes[static_cast<int>(want.value)]) ||
        type.bits != 8 * want.bytes || type.lanes != 1) {
      refuse(wanted, value);
    }
    nanobind::ndarray<nanobind::c_contig, nanobind::device::cpu> writable;
    if (!want.is_constant && !nanobind::try_cast(value, writable, false)) {
      refuse(wanted + " that may be written", value);
    }
    return reinterpret_cast<std::uint64_t>(array.data());
  }

  [[nodiscard]] std::uint64_t number_of(const KernelArgument& want, nanobind::handle value) const {
    if (want.value == KernelValue::kFloat) return real_of(want, value);
    if ((want.value == KernelValue::kBool) != PyBool_Check(value.ptr())) refuse(type_of(want), value);
    if (want.value == KernelValue::kBool) return value.ptr() == Py_True ? 1 : 0;
    return whole_of(want, value);
  }

  static std::uint64_t real_of(const KernelArgument& want, nanobind::handle value) {
    const double number = PyFloat_AsDouble(value.ptr());
    if (PyErr_Occurred() != nullptr) throw nanobind::python_error();
    if (want.bytes == sizeof number) return std::bit_cast<std::uint64_t>(number);
    return std::bit_cast<std::uint32_t>(static_cast<float>(number));
  }

  // The low bytes of the word, which come first.
  [[nodiscard]] std::uint64_t whole_of(const KernelArgument& want, nanobind::handle value) const {
    if (PyIndex_Check(value.ptr()) == 0) refuse(type_of(want), value);
    const nanobind::object number = nanobind::steal(PyNumber_Index(value.ptr()));
    if (!number.is_valid()) throw nanobind::python_error();
    const unsigned spare_bits = 64 - 8 * want.bytes;
    const bool is_signed = want.value == KernelValue::kSigned;
    const std::uint64_t word = is_signed ? static_cast<std::uint64_t>(PyLong_AsLongLong(number.ptr()))
                                         : PyLong_AsUnsignedLongLong(number.ptr());
    const std::uint64_t kept =
        is_signed ? static_cast<std::uint64_t>(static_cast<std::int64_t>(word << spare_bits) >> spare_bits)
                  : word << spare_bits >> spare_bits;
    if (PyErr_Occurred() == nullptr && kept == word) return word;
    PyErr_Format(PyExc_OverflowError, "%s: argument %zu is %s, and %S is out of its range", name_.c_str(),
                 index_ + 1, type_of(want).c_str(), number.ptr());
    throw nanobind::python_error();
  }

  std::string name_;
  std::size_t index_ = 0;
  std::vector<std::uint64_t> words_;
  std::vector<const void*> pointers_;
};

}  // namespace gdx::python
