"""A sentence in many languages."""

from __future__ import annotations

SENTENCES = {  # the first article of the Universal Declaration of Human Rights
    "amh_Ethi": "የሰው ልጅ ሁሉ ሲወለድ ነጻና በክብርና በመብትም እኩልነት ያለው ነው።",
    "arb_Arab": "يولد جميع الناس أحراراً متساوين في الكرامة والحقوق.",
    "azj_Latn": "Bütün insanlar ləyaqət və hüquqlarına görə azad və bərabər doğulurlar.",
    "ben_Beng": "সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা এবং অধিকার নিয়ে জন্মগ্রহণ করে।",
    "deu_Latn": "Alle Menschen sind frei und gleich an Würde und Rechten geboren.",
    "ell_Grek": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα.",
    "eng_Latn": "All human beings are born free and equal in dignity and rights.",
    "fra_Latn": "Tous les êtres humains naissent libres et égaux en dignité et en droits.",
    "heb_Hebr": "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם.",
    "hin_Deva": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।",
    "hye_Armn": "Բոլոր մարդիկ ծնվում են ազատ ու հավասար իրենց արժանապատվությամբ ու իրավունքներով։",
    "jpn_Jpan": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "kat_Geor": "ყველა ადამიანი იბადება თავისუფალი და თანასწორი თავისი ღირსებითა და უფლებებით.",
    "kor_Hang": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "pes_Arab": "تمام افراد بشر آزاد به دنیا می‌آیند و از لحاظ حیثیت و حقوق با هم برابرند.",
    "rus_Cyrl": "Все люди рождаются свободными и равными в своем достоинстве и правах.",
    "srp_Cyrl": "Сва људска бића рађају се слободна и једнака у достојанству и правима.",
    "tam_Taml": "மனிதப் பிறவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்.",
    "tgl_Latn": "Lahat ng tao'y isinilang na malaya at pantay-pantay sa karangalan at mga karapatan.",
    "tha_Thai": "มนุษย์ทั้งปวงเกิดมามีอิสระและเสมอภาคกันในศักดิ์ศรีและสิทธิ",
    "tur_Latn": "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar.",
    "ukr_Cyrl": "Всі люди народжуються вільними і рівними у своїй гідності та правах.",
    "uzn_Latn": "Barcha odamlar erkin, qadr-qimmat va huquqlarda teng boʻlib tugʻiladilar.",
    "vie_Latn": "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền lợi.",
    "yue_Hant": "佢哋話今日冇嘢食，我哋唔知點算好，你哋嚟唔嚟呀？",
    "zho_Hans": "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心，并应以兄弟关系的精神相对待。",
    "zho_Hant": "人人生而自由，在尊嚴和權利上一律平等。他們賦有理性和良心，並應以兄弟關係的精神相對待。",
}
