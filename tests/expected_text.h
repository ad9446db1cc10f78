// Comparison of a text with a file that holds all of it, and what hides the run's or the machine's own in
// one. GDX_EXPECTED is the folder of such files.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <regex>
#include <set>
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

// Returns the lines of `text` that `told` has not, and those that begin a paragraph. So a file tells what
// variants have in common only once.
inline std::string beyond(const std::string& told, const std::string& text) {
  std::set<std::string> known;
  std::istringstream lines(told);
  for (std::string line; std::getline(lines, line);) known.insert(line);
  std::string rest;
  lines = std::istringstream(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(' ') || !known.contains(line)) rest += line + "\n";
  }
  return rest;
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
