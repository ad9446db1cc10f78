// Comparison of a text with a file that holds all of it, and what hides the run's or the machine's own in
// one. GDX_EXPECTED is the folder of such files.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <regex>
#include <span>
#include <sstream>
#include <string>
#include <utility>

namespace gdx {

// Tells the first line that differs. With GDX_RENEW_EXPECTED set, writes the file instead: read the change.
inline void expect_text(const std::string& file, const std::string& text) {
  const std::string path = std::string(GDX_EXPECTED "/") + file;
  if (std::getenv("GDX_RENEW_EXPECTED") != nullptr) std::ofstream(path, std::ios::binary) << text;
  std::ifstream expected(path, std::ios::binary);
  ASSERT_TRUE(expected) << path;
  std::istringstream got(text);
  std::string wanted_line;
  std::string line;
  for (int number = 1;; ++number) {
    const bool wanted = static_cast<bool>(std::getline(expected, wanted_line));
    const bool has = static_cast<bool>(std::getline(got, line));
    ASSERT_EQ(has, wanted) << path << ":" << number << ": " << (has ? line : wanted_line);
    if (!has) return;
    ASSERT_EQ(line, wanted_line) << path << ":" << number;
  }
}

// Takes `from` as it stands.
inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

// Replaces each regular expression in turn.
inline std::string masked(std::string text, std::span<const std::pair<const char*, const char*>> patterns) {
  for (const auto& [pattern, by] : patterns) text = std::regex_replace(text, std::regex(pattern), by);
  return text;
}

}  // namespace gdx
