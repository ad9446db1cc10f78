#include "host/gpu/driver_parameters.h"

#include <fmt/format.h>

#include <charconv>

namespace gdx {

std::string relaxed_ordering_in(std::string_view parameters) {
  struct Setting {
    std::string_view name;
    std::string_view separator;
  };
  constexpr Setting kSettings[] = {{"EnablePCIERelaxedOrderingMode", ": "},
                                   {"RmSetPCIERelaxedOrdering", "="}};
  for (const auto& [name, separator] : kSettings) {
    for (std::size_t at = 0; (at = parameters.find(name, at)) != std::string_view::npos; at += name.size()) {
      std::string_view value = parameters.substr(at + name.size());
      if (!value.starts_with(separator)) continue;
      value.remove_prefix(separator.size());
      const bool hexadecimal = value.starts_with("0x");
      if (hexadecimal) value.remove_prefix(2);
      unsigned number = 0;
      std::from_chars(value.data(), value.data() + value.size(), number, hexadecimal ? 16 : 10);
      if (number != 0) return fmt::format("{}{}{}", name, separator, number);
    }
  }
  return {};
}

}  // namespace gdx
