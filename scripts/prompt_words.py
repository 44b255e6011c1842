"""What ``scripts.prompt_source`` makes prompts of: forms with blanks, and what goes into them."""

# --- code ---

MODULES = (
    "abc", "argparse", "ast", "base64", "bdb", "bisect", "calendar", "cmd", "code", "codecs",
    "collections", "colorsys", "configparser", "contextlib", "copy", "csv", "dataclasses",
    "datetime", "difflib", "dis", "doctest", "enum", "filecmp", "fileinput", "fnmatch", "fractions",
    "ftplib", "functools", "getopt", "getpass", "gettext", "glob", "graphlib", "gzip", "hashlib",
    "heapq", "hmac", "html", "html.parser", "http.client", "http.cookiejar", "http.cookies",
    "http.server", "imaplib", "inspect", "io", "ipaddress", "json.decoder", "json.encoder",
    "keyword", "linecache", "locale", "logging", "logging.handlers", "mailbox", "mimetypes",
    "netrc", "ntpath", "numbers", "operator", "optparse", "os", "pdb", "pickle", "pkgutil",
    "platform", "plistlib", "poplib", "posixpath", "pprint", "profile", "pstats", "pyclbr",
    "queue", "quopri", "random", "reprlib", "rlcompleter", "sched", "selectors", "shelve", "shlex",
    "shutil", "smtplib", "socket", "socketserver", "sqlite3.dump", "ssl", "stat", "statistics",
    "string", "stringprep", "subprocess", "sysconfig", "tabnanny", "tarfile", "tempfile",
    "textwrap", "threading", "timeit", "token", "tokenize", "trace", "traceback", "types",
    "typing", "unittest.case", "unittest.mock", "urllib.parse", "urllib.request",
    "urllib.robotparser", "uuid", "warnings", "wave", "weakref", "xml.dom.minidom",
    "xml.etree.ElementTree", "xmlrpc.client", "zipapp", "zipfile",
)  # fmt: skip

CODE_REQUESTS = (
    "Explain what this function does.",
    "Explain this Python code step by step.",
    "Write a docstring for this function.",
    "Add type hints to this function.",
    "Write unit tests for this function.",
    "Refactor this function so that it is easier to read.",
    "Add a comment to each line of this function.",
    "What could go wrong when this function is called?",
    "Rename the variables of this function to something clearer, and change nothing else.",
    "Add error handling to this function.",
    "Give an example of how to call this function, and what it returns.",
    "Repeat this function, and add a print statement at its beginning.",
)

CODE_TASK_FORMS = (
    "Write a {language} function that {what}.",
    "Write a {language} function that {what}. Add comments.",
    "Write a {language} program that {what}, and explain how it works.",
    "How do I write a function in {language} that {what}?",
)

CODE_TASKS = (
    "reverses a string",
    "counts the words in a text",
    "checks whether a number is prime",
    "finds the largest number in a list",
    "removes duplicates from a list but keeps the order",
    "computes the n-th Fibonacci number",
    "sorts a list of names by their length",
    "merges two sorted lists",
    "checks whether a word is a palindrome",
    "converts temperatures from Celsius to Fahrenheit",
    "counts how often each letter occurs in a sentence",
    "finds the second smallest number in a list",
    "adds up the digits of a number",
    "prints the multiplication table of a number",
    "checks whether brackets in a text are balanced",
    "rotates a list by k places",
    "finds the longest word in a sentence",
    "converts a Roman numeral to a number",
    "computes the greatest common divisor of two numbers",
    "checks whether two words are anagrams",
    "replaces every vowel in a text with a star",
    "flattens a list of lists",
    "reads a text with numbers, one a line, and returns their average",
    "generates a random password of a given length",
    "computes the factorial of a number with recursion",
    "searches a sorted list by bisection",
    "transposes a matrix",
    "groups a list of words by their first letter",
    "computes how many days lie between two dates",
    "implements a stack with push and pop",
    "keeps a shopping list to which items can be added and from which they can be removed",
    "counts the lines of a file that contain a given word",
    "plays rock, paper, scissors against the user",
    "converts a number to binary",
    "finds all pairs of numbers in a list that add up to a target",
    "computes the median of a list of numbers",
)

# --- people, places, things ---

NAMES = (
    "Anna", "Ben", "Clara", "David", "Ella", "Farid", "Grace", "Hugo", "Ines", "Jonas", "Karim",
    "Lena", "Maya", "Noah", "Olga", "Pedro", "Rosa", "Samuel", "Tara", "Victor", "Wanda", "Yusuf",
)  # fmt: skip
SURNAMES = (
    "Abbott", "Berger", "Castillo", "Dawson", "Eriksen", "Fontaine", "Grant", "Hartmann", "Ito",
    "Jensen", "Keller", "Larsen", "Moreno", "Novak", "Osei", "Peters", "Quinn", "Rossi", "Singh",
)  # fmt: skip
TOWNS = (
    "Alder Bay", "Brookfield", "Castle Hill", "Dunmore", "Eastport", "Fairhaven", "Greystone",
    "Harrow Lake", "Kingsbridge", "Lindale", "Millbrook", "Northgate", "Oakridge", "Port Elin",
)  # fmt: skip
PLACES = (
    "a small town by the sea", "an old lighthouse", "a library at night", "a mountain village",
    "a space station", "a busy market", "an abandoned theatre", "a desert island", "a school",
    "a train that never stops", "a garden behind a hospital", "a castle in the fog",
    "the bottom of the ocean", "a bakery", "a museum", "a city without cars", "a farm in winter",
)  # fmt: skip
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
THINGS = (
    "bridge", "clock", "map", "violin", "telescope", "boat", "bicycle", "painting", "book", "lamp",
    "camera", "garden", "mill", "school", "radio", "statue", "fountain", "piano", "tower", "kite",
)  # fmt: skip
GOODS = (
    "apples", "books", "pencils", "stickers", "marbles", "cookies", "tickets", "flowers", "eggs",
    "bottles", "shells", "stamps", "candles", "oranges", "cards", "balloons",
)  # fmt: skip
CHARACTERS = (
    "a young inventor", "an old fisherman", "a robot that wants to paint", "two sisters",
    "a shy dragon", "a postman", "a detective who is afraid of the dark", "a talking cat",
    "a girl who can stop time", "a retired teacher", "a pilot", "a baker", "a king without a crown",
    "a scientist", "a boy and his dog", "a gardener", "a night watchman", "a musician",
    "an astronaut", "a librarian", "a fox", "a clockmaker",
)  # fmt: skip
EVENTS = (
    "finds a letter that was never sent", "loses something important", "hears a strange sound",
    "has to make a difficult choice", "meets an old friend", "discovers a hidden door",
    "learns to trust a stranger", "misses the last train", "is given a second chance",
    "tells a lie and regrets it", "wakes up in another century", "wins a contest by mistake",
    "must cross a river", "plants a seed that grows overnight", "is asked to keep a secret",
    "repairs something that everybody had given up on", "gets lost in a storm",
)  # fmt: skip
PEOPLE = (
    "a child of ten", "a beginner", "a busy parent", "a student", "a tourist", "an older person",
    "a small business", "a new employee", "a teacher", "someone with little money",
)  # fmt: skip

# --- texts to write ---

STORY_FORMS = (
    "Write a short story about {who} who {what}.",
    "Write a story of about {count} words. It is set in {where}, and it is about {who}.",
    "Tell me a bedtime story about {who} in {where}.",
    "Write the beginning of a story in which {who} {what}.",
    "Write a short story that begins with: \"{name} had never seen {where} before.\"",
    "Write a dialogue between {name} and {who} in {where}.",
    "Write a poem about {who} who {what}.",
    "Describe {where} through the eyes of {who}.",
)  # fmt: skip

LIST_FORMS = (
    "Give me {count} {what}.",
    "List {count} {what} for {who}.",
    "Write a list of {count} {what}, with a sentence about each.",
    "What are {count} {what}? Number them.",
    "Make a table of {count} {what} with two columns.",
)

LIST_SUBJECTS = (
    "tips for sleeping better", "ideas for a birthday party", "ways to save energy at home",
    "healthy breakfasts", "questions to ask in a job interview", "games for a rainy day",
    "reasons to learn a language", "books everyone should read", "ways to make new friends",
    "exercises without equipment", "things to pack for a trip to the mountains",
    "habits of good learners", "ways to reduce waste", "names for a coffee shop",
    "safety rules for the kitchen", "ideas for a science project", "cheap dinners",
    "ways to calm down before an exam", "signs that a plant needs water", "inventions that changed "
    "the world", "animals that live in the desert", "things to check before buying a used car",
    "topics for a short speech", "ways to thank a colleague", "uses for an old newspaper",
    "rules for a polite discussion", "steps to plan a small garden", "mistakes in writing emails",
)  # fmt: skip

LETTER_FORMS = (
    "Write {tone} letter to {to} {why}.",
    "Write {tone} email to {to} {why}. Sign it as {name}.",
    "Help me write a message to {to} {why}.",
    "Draft a short reply from {name} to {to} {why}. Make it sound like {tone} letter.",
)
RECIPIENTS = (
    "my landlord", "a neighbour", "a customer", "my manager", "my teacher", "the city council",
    "an old friend", "a hotel", "a newspaper", "my team", "a supplier", "my grandmother",
    "the parents of my class", "a job applicant",
)  # fmt: skip
OCCASIONS = (
    "to apologise for being late", "to ask for a day off", "to complain about noise",
    "to say thank you for a gift", "to cancel an appointment", "to invite them to a party",
    "to ask for a refund", "to report a broken heater", "to recommend a colleague",
    "to ask for advice", "to announce that I am moving", "to explain a delay",
    "to congratulate them", "to propose a new idea", "to remind them of a payment",
)  # fmt: skip
TONES = ("a polite", "a friendly", "a formal", "a short", "a funny", "a firm", "a warm")

EXPLANATION_FORMS = (
    "Explain {what} to {who}.",
    "What is the simplest way to understand {what}?",
    "Write a short paragraph about {what}.",
    "Why does {what} matter?",
    "What are the advantages and disadvantages of {what}?",
    "Compare {what} with something from everyday life.",
    "What do most people get wrong about {what}?",
    "Write an introduction to an essay about {what}.",
)
TOPICS = (
    "photosynthesis", "gravity", "inflation", "the water cycle", "machine learning", "vaccines",
    "compound interest", "the seasons", "democracy", "electric cars", "black holes", "recycling",
    "a balanced diet", "working from home", "the internet", "earthquakes", "supply and demand",
    "meditation", "solar power", "the immune system", "public transport", "coral reefs",
    "time management", "the human heart", "chess", "climate and weather", "encryption", "sleep",
    "the printing press", "teamwork", "volcanoes", "insurance", "evolution", "bridges", "tides",
    "social media", "learning an instrument", "batteries", "maps", "bread baking", "migration of "
    "birds", "open source software", "the stock market", "traffic lights", "biodiversity",
)  # fmt: skip

ROLE_FORMS = (
    "You are {role}. Explain {what} to {who}.",
    "Pretend to be {role} who {event}. What do you say?",
    "Act as {role}. I am {who}, and I want to know more about {what}. Answer in character.",
    "Write a diary entry of {role} who {event}.",
    "Imagine you are {role}. Give a short speech about {what}.",
    "Write an interview with {role} about {what}.",
)
ROLES = (
    "a pirate", "a patient teacher", "a grumpy wizard", "a museum guide", "a detective",
    "a news reporter", "a doctor", "a robot from the year 3000", "a chef", "a football coach",
    "a medieval knight", "a travel agent", "an old tree", "a judge", "a ship's captain",
    "a librarian", "a salesperson", "an astronomer", "a ghost", "a mayor",
)  # fmt: skip

SENTENCES = (
    "{name} arrived in {where} on {day}.",
    "The {thing} was repaired after {number} days.",
    "I would like to buy a {thing}, please.",
    "On {day} we will visit {where} with {number} friends.",
    "Where can I find the {thing} that {name} told me about?",
    "{name} has lived in {where} for {number} years.",
    "The {thing} is old, but it still works.",
    "If it rains on {day}, we will stay at home and read.",
    "Nobody knew why the {thing} in {where} was so famous.",
    "{name} forgot the {thing} on the train last {day}.",
    "There were {number} people waiting in front of the {thing}.",
    "Please tell {name} that the meeting on {day} is cancelled.",
)

# --- passages, and what to ask about them ---

OPENINGS = (
    "In {year}, {name} {other} moved to {town} and opened a small workshop.",
    "The {thing} of {town} was built in {year} by {name} {other}.",
    "{name} {other}, who was born in {town} in {year}, is best known for a single {thing}.",
    "Every {day}, the people of {town} meet beside the old {thing}.",
    "The town council of {town} decided on {day} to save the {thing} that {name} {other} left it.",
    "For many years, {town} had no {thing} of its own.",
    "A storm reached {town} on {day} and damaged the {thing} that stood there since {year}.",
)
MIDDLES = (
    "At first only a few people came, but after a year there were {number} visitors a week. Some "
    "of them had travelled for days to see it, and a newspaper wrote that nothing like it existed "
    "anywhere else.",
    "The work took {number} days and cost more than anyone had expected. {name} paid for most of "
    "it and asked for nothing in return, except that it should be open to everybody.",
    "According to a report, {number} people signed a letter in its favour. Others said that the "
    "money would be better spent on the school, which has needed a new roof since {year}.",
    "Children learn about it at school, and each {day} a volunteer explains how it was made. The "
    "tour takes an hour, costs nothing and ends with tea.",
    "The wood came from the forest behind the mill, the metal from a ship that had sunk near the "
    "harbour. {number} volunteers carried everything up the hill by hand.",
    "Experts disagree about its value. {other} called it a curiosity, while a museum offered "
    "{number} thousand for it, an offer that {town} refused.",
)
ENDINGS = (
    "Today it is looked after by a club of {number} members.",
    "In the end, {town} kept it, and few people regret that now.",
    "Nobody knows what became of {name}, but the {thing} is still there.",
    "The next public meeting about it is on {day}.",
    "A plaque tells the story in four languages.",
    "Since {year} it has been closed only once, because of snow.",
)

SUMMARY_FORMS = (
    "Summarise the following text in one sentence.\n\n{text}",
    "{text}\n\nSummarise this in your own words.",
    "Write a headline for this text:\n\n{text}",
    "Give the three main points of this text as a list.\n\n{text}",
    "{text}\n\nRewrite this text so that a child can understand it.",
    "Rewrite the following in the present tense:\n\n{text}",
    "Correct any mistakes in the following text and repeat it.\n\n{text}",
    "Make this text shorter, but keep all the facts:\n\n{text}",
)

QUESTION_FORMS = (
    "{text}\n\nQuestion: {question}\nAnswer:",
    "Read the text and answer the question.\n\n{text}\n\n{question}",
    "{question}\n\nUse only this text to answer:\n{text}",
    "{text}\n\n{question} Quote the sentence that tells you so.",
)
QUESTIONS = (
    "Where does this take place?",
    "Which person is named in the text?",
    "What number is mentioned, and what does it count?",
    "When did it happen?",
    "What did people think of it?",
    "Why is it remembered?",
    "Who paid for it, if the text says so?",
    "What happened in the end?",
    "Is the author for or against it?",
    "What is not explained in the text?",
)

EXTRACTION_FORMS = (
    "Extract all names of people and places from this text, as a list.\n\n{text}",
    "List every number in the following text, and say what it means.\n\n{text}",
    "{text}\n\nReturn the facts of this text as JSON with the keys \"place\", \"person\", "
    "\"year\" and \"number\".",
    "Which words in this text are nouns?\n\n{text}",
    "{text}\n\nMake a table with the columns Who, What, Where and When.",
    "Write five questions that this text answers.\n\n{text}",
)  # fmt: skip

PROBLEMS = (
    "{name} has {a} {thing}. {other} gives {name} {b} more, and {name} loses {c}. How many {thing} "
    "does {name} have now?",
    "A box holds {b} {thing}. {name} has {a} boxes and gives away {c} of them. How many {thing} "
    "are left?",
    "{name} buys {b} {thing} for {a} dollars each and pays with {much} dollars. How much change "
    "does {name} get?",
    "{name} reads {a} pages a day. How many pages has {name} read after {b} weeks?",
    "{a} {thing} are shared between {c} children. How many does each child get, and how many are "
    "left over?",
    "A train travels {a} kilometres in an hour. How far does it travel in {b} hours and {c} half "
    "hours?",
    "{name} is {a} years old and {other} is {b} years older. How old will {other} be in {c} years?",
    "In a shop, {thing} cost {a} cents each. {name} wants {b} of them, and {other} wants {c} times "
    "as many. How much do they pay in all?",
    "{name} saves {a} dollars a week, but spends {c} dollars of it. How many weeks does it take to "
    "save {more} dollars?",
    "A garden is {a} metres long and {b} metres wide. {name} puts a fence around it, which costs "
    "{c} dollars a metre. What does the fence cost?",
    "There are {more} {thing} on the table. {a} of them are red, and half of the others are blue. "
    "How many are blue?",
    "{name} works {b} hours a day for {c} days and earns {a} dollars an hour. How much is that?",
)
