// gdxd's statistics for readers, as `gdx stat` and `gdx top` print them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace gdx {

// With rates since `before`, which is `seconds` older; none where that is an empty object.
[[nodiscard]] std::string stat_text(const nlohmann::ordered_json& now, const nlohmann::ordered_json& before,
                                    double seconds);

}  // namespace gdx
