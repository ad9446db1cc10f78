// A benchmark's document as one static page that needs no other file and no script: charts, tables of every
// figure, and the document itself to save.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace gdx::bench {

// Returns page.html, whose names in double braces page() replaces.
[[nodiscard]] std::string_view page_template();

// Every figure of a table or chart carries the place that it has in the document, as a JSON pointer.
[[nodiscard]] std::string page(const nlohmann::ordered_json& document);

}  // namespace gdx::bench
